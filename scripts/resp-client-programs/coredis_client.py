"""coredis against a gateway: `coredis_client.py PORT RESTART`."""

import asyncio
import subprocess
import sys

import coredis


async def main():
    port, restart = int(sys.argv[1]), sys.argv[2]
    client = coredis.Redis(host="127.0.0.1", port=port)
    async with client:
        await client.ping()
        await client.flushdb()
        binary = bytes(range(128))
        assert await client.set(binary, bytes(range(256)))
        assert await client.get(binary) == bytes(range(256))
        assert await client.incr("a") == 1
        async with client.pipeline(transaction=False) as pipeline:
            sent = [pipeline.set(f"key:{number:05}", str(number)) for number in range(10000)]
        assert len(sent) == 10000
        keys = [key async for key in client.scan_iter(match="key:*", count=900)]
        assert keys == [b"key:%05d" % number for number in range(10000)], len(keys)
        subprocess.run([restart], check=True)
        for attempt in range(50):
            try:
                assert await client.get("key:00100") == b"100"
                break
            except (coredis.exceptions.ConnectionError, OSError):
                await asyncio.sleep(0.1)
        else:
            raise SystemExit("no connection after the restart")


asyncio.run(main())
