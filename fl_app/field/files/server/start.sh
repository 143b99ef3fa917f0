#!/bin/sh
# Starts the SuperLink, or with the argument caddy what stands before it, with the settings in server.env.
# Both write to this folder only.
set -eu
cd "$(dirname "$0")"
if [ -z "${SUPERLINK-}" ]; then # systemd and Docker read server.env themselves
    set -a
    # shellcheck source=/dev/null
    . ./server.env
    set +a
fi
export PATH="${VENV:+$VENV/bin:}$PATH" # Flower's commands call each other by name
export FLWR_HOME="$PWD/flower" XDG_STATE_HOME="$PWD/state" XDG_CACHE_HOME="$PWD/cache"
export FL_APP_DATA="${FL_APP_DATA-$PWD/data}" FL_APP_KIT="$PWD"
if [ "${1-}" = caddy ]; then
    XDG_CONFIG_HOME="$PWD/cache" XDG_DATA_HOME="$PWD/cache" exec caddy run --config Caddyfile
fi
python -m fl_app.field register . & # all keys in keys/, once the SuperLink answers
# With this file, `FLWR_HOME=<this folder>/flower flwr ls` asks this SuperLink.
mkdir -p flower
cat >flower/config.toml <<END
[superlink]
default = "field"

[superlink.field]
address = "127.0.0.1:${SUPERLINK##*:}"
root-certificates = "$PWD/ca.crt"
END
# What large requests took goes back to the system at once, and does not stay with each thread.
export MALLOC_ARENA_MAX="${MALLOC_ARENA_MAX-2}" MALLOC_MMAP_THRESHOLD_="${MALLOC_MMAP_THRESHOLD_-1048576}"
# The database keeps nodes, keys and the history of runs over a restart of the SuperLink. Whoever reaches
# its port can submit runs: from elsewhere only Caddy is reached. (BIND is for a network of containers.)
exec flower-superlink --host "${BIND:-127.0.0.1}" --port "${SUPERLINK##*:}" --database state.db \
    --ssl-ca-certfile ca.crt --ssl-certfile server.crt --ssl-keyfile server.key --enable-supernode-auth
