# $1: how many versions stay installed.
if [ "$1" -eq 0 ]; then
    systemctl --no-reload disable --now jvmprof.service jvmprof-collector.service >/dev/null 2>&1 || :
fi
