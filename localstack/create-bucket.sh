#!/bin/sh
# Run by LocalStack when it is ready, and by host-mode.sh: makes the bucket `thermocline`.
exec curl -fsS -o /dev/null -X PUT "http://${GATEWAY_LISTEN_ADDRESS:-127.0.0.1:4566}/thermocline"
