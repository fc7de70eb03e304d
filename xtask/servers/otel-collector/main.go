// Command otel-collector is an OpenTelemetry collector for tests: the receiver of OTLP as it is
// published, an exporter that writes profiles to a file, as JSON lines, and an extension that wants
// a token.
//
// A message is in the file before it is answered, so that no kill loses what was answered, unless
// the exporter has a queue. The file exporter of the collector's contributions writes once a
// second.
package main

import (
	"context"
	"errors"
	"log"
	"os"
	"strings"
	"time"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/config/configoptional"
	"go.opentelemetry.io/collector/confmap"
	"go.opentelemetry.io/collector/confmap/provider/fileprovider"
	"go.opentelemetry.io/collector/exporter"
	"go.opentelemetry.io/collector/exporter/exporterhelper"
	"go.opentelemetry.io/collector/exporter/exporterhelper/xexporterhelper"
	"go.opentelemetry.io/collector/exporter/xexporter"
	"go.opentelemetry.io/collector/extension"
	"go.opentelemetry.io/collector/extension/extensionauth"
	"go.opentelemetry.io/collector/otelcol"
	"go.opentelemetry.io/collector/pdata/pprofile"
	"go.opentelemetry.io/collector/receiver"
	"go.opentelemetry.io/collector/receiver/otlpreceiver"
	"go.opentelemetry.io/collector/service/telemetry/otelconftelemetry"
)

type linesConfig struct {
	Path string `mapstructure:"path"`
	// QueueSize is the number of messages that are answered before they are written; 0: none is.
	QueueSize int64 `mapstructure:"queue_size"`
}

func createLines(
	ctx context.Context, settings exporter.Settings, config component.Config,
) (xexporter.Profiles, error) {
	lines := config.(*linesConfig)
	flags := os.O_APPEND | os.O_CREATE | os.O_WRONLY
	file, err := os.OpenFile(lines.Path, flags, 0o640)
	if err != nil {
		return nil, err
	}
	// What a kill has cut off isn't the begin of the next message.
	if _, err := file.Write([]byte{'\n'}); err != nil {
		return nil, err
	}
	write := func(_ context.Context, profiles pprofile.Profiles) error {
		for isStopped(lines.Path) {
			time.Sleep(10 * time.Millisecond)
		}
		line, err := (&pprofile.JSONMarshaler{}).MarshalProfiles(profiles)
		if err != nil {
			return err
		}
		// Lines of several messages don't mix: each is one write to the end.
		_, err = file.Write(append(line, '\n'))
		return err
	}
	var options []exporterhelper.Option
	if lines.QueueSize > 0 {
		queue := exporterhelper.NewDefaultQueueConfig()
		queue.QueueSize, queue.NumConsumers = lines.QueueSize, 1
		options = append(options, exporterhelper.WithQueue(configoptional.Some(queue)))
	}
	return xexporterhelper.NewProfiles(ctx, settings, config, write, options...)
}

// isStopped reports whether a test has stopped the writing to a file by another one beside it.
func isStopped(path string) bool {
	_, err := os.Stat(path + ".stop")
	return err == nil
}

type tokenConfig struct {
	Token string `mapstructure:"token"`
}

// tokenAuthenticator lets in who has a token.
type tokenAuthenticator struct {
	component.StartFunc
	component.ShutdownFunc
	token string
}

var _ extensionauth.Server = (*tokenAuthenticator)(nil)

// Authenticate implements extensionauth.Server.
func (a *tokenAuthenticator) Authenticate(
	ctx context.Context, headers map[string][]string,
) (context.Context, error) {
	for name, values := range headers {
		is := strings.EqualFold(name, "authorization")
		if is && len(values) == 1 && values[0] == "Bearer "+a.token {
			return ctx, nil
		}
	}
	return ctx, errors.New("no token, or a wrong one")
}

func createToken(
	_ context.Context, _ extension.Settings, config component.Config,
) (extension.Extension, error) {
	return &tokenAuthenticator{token: config.(*tokenConfig).Token}, nil
}

func components() (otelcol.Factories, error) {
	lines := xexporter.NewFactory(
		component.MustNewType("lines"),
		func() component.Config { return &linesConfig{} },
		xexporter.WithProfiles(createLines, component.StabilityLevelDevelopment),
	)
	token := extension.NewFactory(
		component.MustNewType("token"),
		func() component.Config { return &tokenConfig{} },
		createToken,
		component.StabilityLevelDevelopment,
	)
	factories := otelcol.Factories{Telemetry: otelconftelemetry.NewFactory()}
	var err error
	factories.Extensions, err = otelcol.MakeFactoryMap[extension.Factory](token)
	if err != nil {
		return factories, err
	}
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
