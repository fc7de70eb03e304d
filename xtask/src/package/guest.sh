#!/bin/bash
# Runs in the booted machine: the packages' whole life, two lines for each thing that must hold:
# begins NAME, and ok NAME, or FAILED NAME and what was seen. The last line says that the end was
# reached.
exec 3>/dev/ttyS1
export DEBIAN_FRONTEND=noninteractive PATH=/usr/sbin:/usr/bin:/sbin:/bin

# check NAME COMMAND...: the command must succeed.
check() {
    local name=$1 seen
    shift
    echo "begins $name" >&3
    if seen=$("$@" 2>&1); then
        echo "ok $name" >&3
    else
        { echo "FAILED $name: $*"; echo "$seen"; systemctl status --no-pager jvmprof; journalctl --no-pager -u jvmprof | tail -n 30; } >&3 2>&1
    fi
}

pid() { systemctl show -P MainPID jvmprof; }
state() { systemctl show -P ActiveState jvmprof; }
status_has() { grep -Eqx "$1" "/proc/$(pid)/status" || { cat "/proc/$(pid)/status"; false; }; }
# Waits for at most a minute; shows what the last try said.
until_true() { local seen; for _ in $(seq 120); do seen=$("$@" 2>&1) && return; sleep 0.5; done; echo "$seen"; false; }
profiles() { find /var/lib/private/jvmprof -name '*.pb.gz' | grep -q .; }
# Each profile is read once more if it changed meanwhile.
named() { find /var/lib/private/jvmprof -name '*.pb.gz' -exec zcat {} + 2>/dev/null | grep -aq "$1"; }

bash -c 'while :; do read -r _ < /proc/loadavg; done' &

check "installs" dpkg -i /packages/1.deb
check "is started by the installation" test "$(state)" = active
check "has a manual page" test -f /usr/share/man/man1/jvmprof-daemon.1.gz
check "completes in bash" test -s /usr/share/bash-completion/completions/jvmprof
check "is enabled" systemctl is-enabled --quiet jvmprof
check "runs as nobody known" bash -c "! grep -Eq '^Uid:\s+0' /proc/$(pid)/status"
check "has five capabilities" status_has 'CapEff:\s+000001c000080004'
check "has no others to gain" status_has 'CapBnd:\s+000001c000080004'
check "gains no privileges" status_has 'NoNewPrivs:\s+1'
check "has its system calls filtered" status_has 'Seccomp:\s+2'
check "keeps profiles" until_true profiles
check "sees other users' processes" until_true named loadavg_proc_show
check "names the kernel's functions" until_true named do_syscall_64
check "keeps them from others" bash -c "[ \$(stat -c %a /var/lib/private/jvmprof) = 700 ]"
check "checks its settings" jvmprof daemon --config /etc/jvmprof/jvmprof.toml --check-config

check "has a collector that nobody asked for" bash -c '[ "$(systemctl is-enabled jvmprof-collector)" = disabled ] && ! systemctl is-active --quiet jvmprof-collector'
check "starts the collector" systemctl start jvmprof-collector
check "keeps its profiles from others" bash -c "[ \$(stat -c %a /var/lib/private/jvmprof-collector) = 700 ]"
collector=$(systemctl show -P MainPID jvmprof-collector)
check "lets the collector do nothing" grep -Eqx 'CapBnd:\s+0000000000000000' "/proc/$collector/status"
check "answers on its port" bash -c 'exec 3<>/dev/tcp/127.0.0.1/7070 && printf "GET /healthz HTTP/1.0\r\nHost: localhost\r\n\r\n" >&3 && grep -qx ok <&3'

# The token as docs/deploy.md has it: a file that only root may read.
(umask 077 && echo 0123456789abcdef0123 > /root/token)
mkdir -p /etc/systemd/system/jvmprof-collector.service.d
cat > /etc/systemd/system/jvmprof-collector.service.d/token.conf <<'END'
[Service]
LoadCredential=token:/root/token
Environment="JVMPROF_COLLECTOR_OPTIONS=--token-file /run/credentials/jvmprof-collector.service/token"
END
check "takes a token by LoadCredential=" bash -c 'systemctl daemon-reload && systemctl restart jvmprof-collector'
# answers CODE HEADER: the status of an answer of the collector.
answers() { exec 4<>/dev/tcp/127.0.0.1/7070 && printf 'GET / HTTP/1.0\r\nHost: localhost\r\n%s\r\n\r\n' "$2" >&4 && head -n 1 <&4 | grep -q " $1 "; }
check "refuses whoever lacks it" answers 401 'X-Nothing: 0'
check "refuses a wrong one" answers 401 'Authorization: Bearer 0123456789abcdef0124'
check "lets its owner in" answers 200 'Authorization: Bearer 0123456789abcdef0123'

# The daemon's token as docs/deploy.md has it: read by its capability, not by its user.
(umask 077 && cp /root/token /etc/jvmprof/token)
cat >> /etc/default/jvmprof <<'END'
JVMPROF_REMOTE_STORE_ADDRESS=http://127.0.0.1:7070
JVMPROF_REMOTE_STORE_BEARER_TOKEN_FILE=/etc/jvmprof/token
END
check "takes the collector's address" systemctl restart jvmprof
metrics() { exec 4<>/dev/tcp/127.0.0.1/7070 && printf 'GET /metrics HTTP/1.0\r\nHost: localhost\r\nAuthorization: Bearer 0123456789abcdef0123\r\n\r\n' >&4 && cat <&4; }
collected() { seen=$(metrics); grep -Eq '^jvmprof_collector_samples_total [1-9]' <<< "$seen" || { echo "$seen"; false; }; }
check "pushes to the collector" until_true collected
sed -i '/^JVMPROF_/d' /etc/default/jvmprof
rm /etc/jvmprof/token

echo 'http-address = "unix:/run/jvmprof/http.sock"' >> /etc/jvmprof/jvmprof.toml
check "starts with a socket" systemctl restart jvmprof
check "listens on its socket" until_true test -S /run/jvmprof/http.sock

before=$(pid)
echo 'frequency = 49' >> /etc/jvmprof/jvmprof.toml
check "reloads" systemctl reload jvmprof
check "is the same after that" test "$(pid)" = "$before"
echo 'frequencyy = 49' >> /etc/jvmprof/jvmprof.toml
check "is told of bad settings" systemctl reload jvmprof
sleep 1
check "goes on without them" test "$(state)" = active -a "$(pid)" = "$before"
sed -i '$d' /etc/jvmprof/jvmprof.toml

kept=$(find /var/lib/private/jvmprof -name '*.pb.gz' | wc -l)
check "upgrades" dpkg -i /packages/2.deb
check "is another process after that" test "$(state)" = active -a "$(pid)" != "$before"
check "keeps changed settings" grep -qx 'frequency = 49' /etc/jvmprof/jvmprof.toml
check "keeps its profiles" test "$(find /var/lib/private/jvmprof -name '*.pb.gz' | wc -l)" -ge "$kept"

kill -KILL "$(pid)"
check "is started again after a crash" until_true bash -c '[ "$(systemctl show -P ActiveState jvmprof)" = active ] && [ "$(systemctl show -P NRestarts jvmprof)" = 1 ]'

started=$SECONDS
check "is removed" dpkg -r jvmprof
check "ends by itself" test $((SECONDS - started)) -lt 25
check "runs no more" bash -c '! grep -lx jvmprof /proc/[0-9]*/comm'
check "leaves settings" test -f /etc/jvmprof/jvmprof.toml
check "leaves profiles" profiles
check "is purged" dpkg -P jvmprof
check "leaves no settings" test ! -e /etc/jvmprof -a ! -e /etc/default/jvmprof
check "leaves no collector" test ! -e /var/lib/private/jvmprof-collector -a ! -e /etc/default/jvmprof-collector
check "leaves no state" test ! -e /var/lib/private/jvmprof -a ! -e /var/lib/jvmprof -a ! -e /var/cache/private/jvmprof
check "leaves no unit" bash -c '! systemctl cat jvmprof'

# The RPM on the same systemd. Fedora's preset: what isn't named is off. Its release's number is 1
# for both versions, so that the upgrade replaces a package by itself: its scripts run all the same.
mkdir -p /etc/systemd/system-preset
echo 'disable *' > /etc/systemd/system-preset/99-default-disable.preset
sysctl --quiet kernel.perf_event_paranoid=3
check "installs the RPM" rpm --install --nodeps /packages/jvmprof.rpm
check "lets the RPM's daemon sample" grep -qx 2 /proc/sys/kernel/perf_event_paranoid
check "leaves the RPM's services off" bash -c '[ "$(systemctl is-enabled jvmprof)$(systemctl is-enabled jvmprof-collector)" = disableddisabled ] && ! systemctl is-active --quiet jvmprof'
check "has a manual page of the RPM" test -f /usr/share/man/man1/jvmprof-daemon.1.gz
check "is enabled and started from the RPM" systemctl enable --now jvmprof
check "keeps profiles from the RPM" until_true profiles
before=$(pid)
echo 'frequency = 49' >> /etc/jvmprof/jvmprof.toml
check "upgrades the RPM" rpm --upgrade --nodeps --replacepkgs /packages/jvmprof.rpm
check "is another process after the RPM's upgrade" test "$(state)" = active -a "$(pid)" != "$before"
check "leaves the collector off after the RPM's upgrade" bash -c '! systemctl is-active --quiet jvmprof-collector'
check "keeps settings changed beside the RPM" grep -qx 'frequency = 49' /etc/jvmprof/jvmprof.toml
check "removes the RPM" rpm --erase jvmprof
check "runs no more without the RPM" bash -c '! grep -lx jvmprof /proc/[0-9]*/comm'
check "leaves no unit of the RPM" bash -c '! systemctl cat jvmprof && [ ! -e /etc/systemd/system/multi-user.target.wants/jvmprof.service ]'
check "saves settings of the RPM" grep -qx 'frequency = 49' /etc/jvmprof/jvmprof.toml.rpmsave
check "leaves profiles of the RPM" profiles

check "is measured" bash -c 'dpkg -i /packages/2.deb && systemd-analyze security --threshold=25 jvmprof.service'
echo "the end" >&3
