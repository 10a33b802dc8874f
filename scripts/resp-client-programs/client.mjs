// node-redis, ioredis or iovalkey against a gateway: `client.mjs PACKAGE PORT RESTART`.
import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { createRequire } from "node:module";
import { setTimeout as sleep } from "node:timers/promises";

const [name, port, restart] = process.argv.slice(2);
const require = createRequire(process.cwd() + "/");
const library = require(name);
const binary = Buffer.from(Array.from({ length: 128 }, (_, byte) => byte));
const value = Buffer.from(Array.from({ length: 256 }, (_, byte) => byte));
const key = (number) => "key:" + String(number).padStart(5, "0");
let client, call, set, getBytes, pipeline;
if (name === "redis") {
  client = library.createClient({ socket: { port: Number(port), host: "127.0.0.1" } });
  client.on("error", () => {});
  await client.connect();
  call = (...words) => client.sendCommand(words.map((it) => (Buffer.isBuffer(it) ? it : String(it))));
  const bytes = client.withTypeMapping({ [library.RESP_TYPES.BLOB_STRING]: Buffer });
  getBytes = (it) => bytes.get(it);
  pipeline = (commands) => Promise.all(commands.map((words) => call(...words)));
} else {
  client = new (library.default ?? library)({ port: Number(port), host: "127.0.0.1" });
  client.on("error", () => {});
  call = (...words) => client.call(...words);
  getBytes = (it) => client.getBuffer(it);
  pipeline = async (commands) => {
    const answers = await client.pipeline(commands.map(([word, ...rest]) => ["call", word, ...rest])).exec();
    return answers.map(([error, answer]) => {
      if (error) throw error;
      return answer;
    });
  };
}
assert.equal(await call("PING"), "PONG");
await call("FLUSHALL");
assert.equal(await client.set(binary, value), "OK");
assert.deepEqual(await getBytes(binary), value);
assert.equal(await client.incr("a"), 1);
assert.equal(await client.get("none"), null);
await assert.rejects(call("EXPIRE", "a", "10"), /no expiry/);
const commands = [];
for (let number = 0; number < 5000; number++) {
  commands.push(["SET", key(number), String(number)], ["GET", key(number)]);
}
const answers = await pipeline(commands);
answers.forEach((answer, at) => assert.equal(String(answer), at % 2 ? String((at - 1) / 2) : "OK"));
let cursor = "0";
const keys = [];
do {
  const [next, page] = await call("SCAN", cursor, "MATCH", "key:*", "COUNT", "700");
  cursor = String(next);
  keys.push(...page);
} while (cursor !== "0");
assert.deepEqual(keys, Array.from({ length: 5000 }, (_, number) => key(number)));
execFileSync(restart);
for (let attempt = 0; ; attempt++) {
  try {
    assert.equal(await client.get(key(100)), "100");
    break;
  } catch (error) {
    if (attempt === 50) throw error;
    await sleep(100);
  }
}
if (name === "redis") client.destroy();
else client.disconnect();
