#!/usr/bin/env bash
# A server may answer one command of a pipeline with LOADING, which says that it has not run it. redis-py then sends the whole
# pipeline again, also the commands whose answers it has already read.
#
# Most would guess: an error of one command belongs to that command. The others keep the answers that they had, as with any
# other error code; at most the refused command is sent again.
# What happens: its class for LOADING is one of its connection errors, and the default client of this version repeats what it
# was doing after such an error, up to ten times. So `INCR a` is done twice, `execute` raises nothing and returns the answers
# of the second time. A server in front of several others, of which one is away, must not use this code within pipelines.
#
# Version: redis 8.1.0 (PyPI), `Redis()` with its defaults, `pipeline(transaction=False)`. Source: redis/exceptions.py,
# redis/client.py. Date: 2026-11-29.
#
#   findings/redis-py-repeats-pipelines.sh        needs Python 3.10 or later with venv; pip fetches the package
#
# Exit codes: 0 it still behaves so, 1 it behaves otherwise, 2 it could not be run.
set -euo pipefail
command -v python3 >/dev/null || { echo "error: there is no python3" >&2; exit 2; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
{
    python3 -m venv "$work/venv" && "$work/venv/bin/pip" install --disable-pip-version-check redis==8.1.0
} >"$work/log" 2>&1 || { tail -n 5 "$work/log" >&2; exit 2; }
"$work/venv/bin/python" - <<'PYTHON'
import socket
import sys
import threading

import redis

received, sums = [], {"a": 0, "b": 0}


def words(stream):
    line = stream.readline()
    if not line:
        return None
    sizes = range(int(line[1:]))
    return [stream.read(int(stream.readline()[1:]) + 2)[:-2].decode() for _ in sizes]


def serve(client):
    stream = client.makefile("rb")
    while command := words(stream):
        if command[0] == "HELLO":
            client.sendall(b"%1\r\n$5\r\nproto\r\n:3\r\n")
        elif command[0].startswith("INCR"):
            received.append(command[1])
            if received == ["a", "b"]:
                client.sendall(b"-LOADING the server of this key is away\r\n")
            else:
                sums[command[1]] += 1
                client.sendall(b":%d\r\n" % sums[command[1]])
        else:
            client.sendall(b"+OK\r\n")


def accept(server):
    while True:
        threading.Thread(target=serve, args=(server.accept()[0],), daemon=True).start()


server = socket.create_server(("127.0.0.1", 0))
threading.Thread(target=accept, args=(server,), daemon=True).start()
pipeline = redis.Redis(port=server.getsockname()[1]).pipeline(transaction=False)
pipeline.incr("a").incr("b")
answers = pipeline.execute(raise_on_error=False)
print(f"redis {redis.__version__}: answers {answers}, the server received INCR of {received}, and holds {sums}")
if (answers, received, sums) == ([2, 1], ["a", "b", "a", "b"], {"a": 2, "b": 1}):
    print("as described: what had been done was done again")
else:
    sys.exit("the behaviour has changed")
PYTHON
