#!/bin/sh
# Starts the SuperLink. What may differ lies in server.env; all it writes stays in this folder.
set -eu
cd "$(dirname "$0")"
if [ -z "${SUPERLINK-}" ]; then # else systemd or Docker has read it
    set -a
    # shellcheck source=/dev/null
    . ./server.env
    set +a
fi
export PATH="${VENV:+$VENV/bin:}$PATH" # Flower's commands call each other by name
export FLWR_HOME="$PWD/flower" XDG_STATE_HOME="$PWD/state" XDG_CACHE_HOME="$PWD/cache"
export FL_APP_DATA="${FL_APP_DATA-$PWD/data}"
if [ "${INSECURE-}" = 1 ]; then
    set -- --insecure
    trust="insecure = true"
else
    set -- --ssl-ca-certfile ca.crt --ssl-certfile server.crt --ssl-keyfile server.key \
        --enable-supernode-auth
    trust="root-certificates = \"$PWD/ca.crt\""
fi
# So that `FLWR_HOME=<this folder>/flower flwr ls` asks this SuperLink.
mkdir -p flower
cat >flower/config.toml <<END
[superlink]
default = "field"

[superlink.field]
address = "127.0.0.1:${SUPERLINK##*:}"
$trust
END
# The database lets nodes, keys and the history of runs outlive the SuperLink.
exec flower-superlink --host "$BIND" --port "${SUPERLINK##*:}" --database state.db "$@"
