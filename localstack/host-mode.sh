#!/bin/sh
# LocalStack's S3 on this machine without Docker, in the foreground, until Ctrl-C. Nothing is kept.
#
#   localstack/host-mode.sh [PORT]        default 4566; binds 127.0.0.1 only
#
#   export AWS_ACCESS_KEY_ID=test AWS_SECRET_ACCESS_KEY=test
#   thermocline serve --data-dir /tmp/tc --bucket 's3://thermocline?endpoint=http://127.0.0.1:4566&region=us-east-1'
#
# Needs Python 3.11 (PYTHON=...) and curl. The first run makes a virtual environment of ~400 MB in
# ~/.cache/thermocline-localstack, because LocalStack's pins do not agree with ours.
set -eu

here=$(cd "$(dirname "$0")" && pwd)
port=${1:-4566}
venv="${XDG_CACHE_HOME:-$HOME/.cache}/thermocline-localstack/4.7.0"

if [ ! -e "$venv/complete" ]; then
    rm -rf "$venv"
    "${PYTHON:-python3.11}" -m venv "$venv"
    # What 4.7.0 was made with; newer ones of these break it at import or in TLS set-up.
    "$venv/bin/pip" install --quiet 'localstack-core[runtime]==4.7.0' \
        'cbor2<6' 'pyopenssl<25.2' 'cryptography<46' 'service-identity<25' 'localstack-twisted<26'
    touch "$venv/complete"
fi

export SERVICES=s3 EAGER_SERVICE_LOADING=1 DISABLE_EVENTS=1 SKIP_SSL_CERT_DOWNLOAD=1 DNS_ADDRESS=0
export GATEWAY_LISTEN="127.0.0.1:$port" GATEWAY_SERVER=hypercorn # the default listens on 0.0.0.0
"$venv/bin/python" -m localstack.runtime.main &
server=$!
trap 'kill "$server" 2>/dev/null; wait "$server"; exit 0' INT TERM

tries=0
until GATEWAY_LISTEN_ADDRESS="127.0.0.1:$port" sh "$here/create-bucket.sh" 2>/dev/null; do
    tries=$((tries + 1))
    if [ "$tries" -gt 120 ] || ! kill -0 "$server" 2>/dev/null; then
        echo "LocalStack did not come up on port $port" >&2
        kill "$server" 2>/dev/null || true
        exit 1
    fi
    sleep 0.5
done
echo "ready: s3://thermocline?endpoint=http://127.0.0.1:$port&region=us-east-1" >&2
wait "$server"
