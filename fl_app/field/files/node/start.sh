#!/bin/sh
# Starts this device's SuperNode with the settings in node.env. It writes to this folder only.
set -eu
cd "$(dirname "$0")"
if [ -z "${SUPERLINK-}" ]; then # systemd and Docker read node.env themselves
    set -a
    # shellcheck source=/dev/null
    . ./node.env
    set +a
fi
export PATH="${VENV:+$VENV/bin:}$PATH" # Flower's commands call each other by name
export FLWR_HOME="$PWD/flower" XDG_STATE_HOME="$PWD/state" XDG_CACHE_HOME="$PWD/cache"
export FL_APP_DATA="${FL_APP_DATA-$PWD/data}" FL_APP_KIT="$PWD"
if [ -n "${DATA-}" ]; then # this device trains on data of its own
    NODE_CONFIG="${NODE_CONFIG-} data='$DATA'"
fi
exec python -m fl_app.node.warm --superlink "$SUPERLINK" --port "$PORT" --node-config "$NODE_CONFIG" \
    --root-certificates ca.crt --auth-supernode-private-key node.key
