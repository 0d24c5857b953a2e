// One call of the script with the three arguments of EchoMQ's Scripts.move_stalled_jobs_to_wait/4; its one argument is a
// JSON object. EVALSHA, and SCRIPT LOAD where the server does not have it yet.
"use strict";

const fs = require("fs");
const crypto = require("crypto");
const Redis = require("ioredis");

const given = JSON.parse(process.argv[2]);
const names = ["stalled", "wait", "active", "failed", "stalled-check", "meta", "paused", "marker"];
const keys = names.map((name) => `${given.base.replace(/:$/, "")}:${name}`);

async function main() {
  const redis = new Redis({ path: given.socket });
  const source = fs.readFileSync(given.script);
  const digest = crypto.createHash("sha1").update(source).digest("hex");
  const call = () => redis.evalsha(digest, keys.length, ...keys, given.base, given.maxStalledCount, Date.now());
  let reply;
  try {
    reply = await call();
  } catch (error) {
    if (!error.message.startsWith("NOSCRIPT")) throw error;
    await redis.script("LOAD", source);
    reply = await call();
  }
  console.log(JSON.stringify({ failed: reply[0], recovered: reply[1] }));
  redis.disconnect();
}

main();
