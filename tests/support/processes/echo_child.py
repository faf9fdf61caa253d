"""Child of the tests of `seams.child_process`: answers messages, writes into the descriptors that come with them."""

from __future__ import annotations

import hashlib
import os
import sys

from seams.child_process import ParentChannel, lower_priority

MODULE = "tests.support.processes.echo_child"


def main() -> None:
    channel = ParentChannel.of_arguments(sys.argv[1:])
    lower_priority()
    channel.send(b"ready")
    while True:
        message, descriptors = channel.receive(None)
        for descriptor in descriptors:
            os.pwrite(descriptor, message, 0)
            os.close(descriptor)
        channel.send(message)
        if message == b"work for minutes":
            hashlib.pbkdf2_hmac("sha512", b"", b"", 1 << 30)  # in C, without the interpreter's lock


if __name__ == "__main__":
    main()
