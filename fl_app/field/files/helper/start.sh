#!/bin/sh
# Starts the helper of secure aggregation with the settings in helper.env. It writes to this folder only.
set -eu
cd "$(dirname "$0")"
if [ -z "${MIN_CLIENTS-}" ]; then # systemd and Docker read helper.env themselves
    set -a
    # shellcheck source=/dev/null
    . ./helper.env
    set +a
fi
export PATH="${VENV:+$VENV/bin:}$PATH"
exec python -m fl_app.field helper --host "$BIND" --port "$PORT" --min-clients "$MIN_CLIENTS" "$PWD"
