// A BullMQ worker in a process of its own: its one argument is a JSON object, it prints its events as lines of JSON,
// and closes at SIGTERM. The same words as tests/support/bullmq_worker.py, which starts it.
"use strict";

const given = JSON.parse(process.argv[2]);
const { Worker } = require(given.package);

const say = (event, more = {}) => process.stdout.write(JSON.stringify({ event, ...more }) + "\n");
const rest = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

async function work(job) {
  if (given.processor === "hang" || job.data.hang) await new Promise(() => {});
  if (given.processor === "finish") return job.data;
  if (job.data.ms) await rest(job.data.ms);
  if (job.attemptsMade < (job.data.fail || 0)) throw new Error("as asked");
  return job.data;
}

const times = { lockDuration: 1000, stalledInterval: 300, drainDelay: 1 };
const worker = new Worker(given.queue, work, {
  connection: { path: given.socket, maxRetriesPerRequest: null },
  ...times,
  ...given.options,
  autorun: false,
});
worker.on("active", (job) => say("active", { id: job.id }));
worker.on("completed", (job) => say("completed", { id: job.id }));
worker.on("failed", (job, error) => say("failed", { id: job && job.id, reason: error.message }));
worker.on("stalled", (id) => say("stalled", { id }));
worker.on("error", (error) => say("error", { text: `${error.name}: ${error.message}` }));

process.on("SIGTERM", async () => {
  await worker.close();
  say("closed");
  process.exit(0);
});
// nobody listens any more: the tests are gone, however they ended
process.stdout.on("error", () => process.exit(1));
const parent = process.ppid;
setInterval(() => process.ppid === parent || process.exit(1), 1000).unref();

worker.waitUntilReady().then(() => {
  say("ready");
  return worker.run();
});
