# $1: how many versions stay installed.
systemctl daemon-reload >/dev/null 2>&1 || :
if [ "$1" -ge 1 ]; then
    systemctl try-restart jvmprof.service jvmprof-collector.service >/dev/null 2>&1 || :
fi
if [ "$1" -eq 0 ]; then
    # Folders aren't among the package's files. Settings that were changed keep theirs.
    rmdir /usr/share/doc/jvmprof /usr/share/licenses/jvmprof /etc/jvmprof >/dev/null 2>&1 || :
fi
