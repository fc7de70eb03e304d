# $1: how many versions are installed then.
systemctl daemon-reload >/dev/null 2>&1 || :
paranoid=/proc/sys/kernel/perf_event_paranoid
if [ "$(cat $paranoid 2>/dev/null || echo 0)" -gt 2 ]; then
    /usr/lib/systemd/systemd-sysctl 60-jvmprof.conf || :
fi
if [ "$1" -eq 1 ]; then
    # What the distribution's presets say: Fedora's and RHEL's leave services off.
    systemctl preset jvmprof.service jvmprof-collector.service >/dev/null 2>&1 || :
fi
