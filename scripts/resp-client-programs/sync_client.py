"""redis-py or valkey-py against a gateway: `sync_client.py MODULE PORT RESTART`."""

import importlib
import subprocess
import sys
import time

module = importlib.import_module(sys.argv[1])
port, restart = int(sys.argv[2]), sys.argv[3]
client = (module.Redis if hasattr(module, "Redis") else module.Valkey)(port=port)

assert client.ping()
client.flushdb()
binary = bytes(range(128))
assert client.set(binary, bytes(range(256)) * 8)
assert client.get(binary) == bytes(range(256)) * 8
assert client.set("a", 1) and client.incr("a") == 2 and client.append("a", "3") == 2
assert client.set("a", 5, nx=True) is None and client.set("a", 5, xx=True, get=True) == b"23"
assert client.mset({"b": 1, "c": 2}) and client.mget("a", "b", "none") == [b"5", b"1", None]
assert client.exists("a", "b", "none") == 2 and client.delete("b", "c", "none") == 2
assert client.ttl("a") == -1 and client.ttl("none") == -2 and client.type("a") in (b"string", "string")
try:
    client.expire("a", 10)
    raise SystemExit("EXPIRE was not refused")
except module.exceptions.ResponseError as error:
    assert "no expiry" in str(error), error

pipeline = client.pipeline(transaction=False)
for number in range(5000):
    pipeline.set(f"key:{number:05}", number).get(f"key:{number:05}")
answers = pipeline.execute()
assert answers == [it for number in range(5000) for it in (True, b"%d" % number)], "pipeline"
keys = list(client.scan_iter(match="key:*", count=700))
assert keys == [b"key:%05d" % number for number in range(5000)], "scan"
assert client.dbsize() == 5002

name = "default"
found = client.execute_command("RI.RANGE", name, "key:00010", "key:00019", "FIELDS", "KEY", "REV")
assert found == [b"key:%05d" % number for number in range(19, 9, -1)], found
assert client.execute_command("RI.COUNT", name, "key:", "key:00099") == 100
assert client.execute_command("RI.DELRANGE", name, "key:00000", "key:00099") == 100

subprocess.run([restart], check=True)
for attempt in range(50):
    try:
        assert client.get("key:00100") == b"100"
        break
    except (module.exceptions.ConnectionError, module.exceptions.TimeoutError):
        time.sleep(0.1)
else:
    raise SystemExit("no connection after the restart")
assert client.get(binary) == bytes(range(256)) * 8
