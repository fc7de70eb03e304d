// Command otel-collector is an OpenTelemetry collector for tests: the receiver of OTLP as it is
// published, and an exporter that writes profiles to a file, as JSON lines.
//
// A message is in the file before it is answered, so that no kill loses what was answered. The
// file exporter of the collector's contributions writes once a second.
package main

import (
	"context"
	"log"
	"os"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/confmap"
	"go.opentelemetry.io/collector/confmap/provider/fileprovider"
	"go.opentelemetry.io/collector/exporter"
	"go.opentelemetry.io/collector/exporter/exporterhelper/xexporterhelper"
	"go.opentelemetry.io/collector/exporter/xexporter"
	"go.opentelemetry.io/collector/otelcol"
	"go.opentelemetry.io/collector/pdata/pprofile"
	"go.opentelemetry.io/collector/receiver"
	"go.opentelemetry.io/collector/receiver/otlpreceiver"
	"go.opentelemetry.io/collector/service/telemetry/otelconftelemetry"
)

type linesConfig struct {
	Path string `mapstructure:"path"`
}

func createLines(
	ctx context.Context, settings exporter.Settings, config component.Config,
) (xexporter.Profiles, error) {
	flags := os.O_APPEND | os.O_CREATE | os.O_WRONLY
	file, err := os.OpenFile(config.(*linesConfig).Path, flags, 0o640)
	if err != nil {
		return nil, err
	}
	// What a kill has cut off isn't the begin of the next message.
	if _, err := file.Write([]byte{'\n'}); err != nil {
		return nil, err
	}
	write := func(_ context.Context, profiles pprofile.Profiles) error {
		line, err := (&pprofile.JSONMarshaler{}).MarshalProfiles(profiles)
		if err != nil {
			return err
		}
		// Lines of several messages don't mix: each is one write to the end.
		_, err = file.Write(append(line, '\n'))
		return err
	}
	return xexporterhelper.NewProfiles(ctx, settings, config, write)
}

func components() (otelcol.Factories, error) {
	lines := xexporter.NewFactory(
		component.MustNewType("lines"),
		func() component.Config { return &linesConfig{} },
		xexporter.WithProfiles(createLines, component.StabilityLevelDevelopment),
	)
	factories := otelcol.Factories{Telemetry: otelconftelemetry.NewFactory()}
	var err error
	factories.Receivers, err = otelcol.MakeFactoryMap[receiver.Factory](otlpreceiver.NewFactory())
	if err != nil {
		return factories, err
	}
	factories.Exporters, err = otelcol.MakeFactoryMap[exporter.Factory](lines)
	return factories, err
}

func main() {
	settings := otelcol.CollectorSettings{
		BuildInfo: component.BuildInfo{Command: "otel-collector", Version: "0.165.0"},
		Factories: components,
		ConfigProviderSettings: otelcol.ConfigProviderSettings{
			ResolverSettings: confmap.ResolverSettings{
				ProviderFactories: []confmap.ProviderFactory{fileprovider.NewFactory()},
				DefaultScheme:     "file",
			},
		},
	}
	if err := otelcol.NewCommand(settings).Execute(); err != nil {
		log.Fatal(err)
	}
}
