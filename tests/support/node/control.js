// What a user's program does to a queue: reads calls as lines of JSON, [object, method, ...arguments], and answers each
// with a line, [null, result] or [error].
"use strict";

const given = JSON.parse(process.argv[2]);
const bullmq = require(given.package);

const options = { connection: { path: given.socket, maxRetriesPerRequest: null }, ...given.options };
const objects = { queue: new bullmq.Queue(given.queue, options), flow: new bullmq.FlowProducer(options) };

// jobs and trees of jobs become ids
function plain(value) {
  if (Array.isArray(value)) return value.map(plain);
  if (value && value.job) return { id: value.job.id, children: plain(value.children || []) };
  if (value instanceof bullmq.Job) return value.id;
  return value === undefined ? null : value;
}

async function main() {
  const lines = require("readline").createInterface({ input: process.stdin });
  for await (const line of lines) {
    const [object, method, ...args] = JSON.parse(line);
    let answer;
    try {
      answer = [null, plain(await objects[object][method](...args))];
    } catch (error) {
      answer = [String(error)];
    }
    process.stdout.write(JSON.stringify(answer) + "\n");
  }
  await objects.flow.close();
  await objects.queue.close();
}

main();
