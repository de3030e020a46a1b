// Starts what the tests talk to: three simulated engines and the gateway in front of them (tests/fleet.py in Node).

import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { createServer } from 'node:net';
import { createInterface } from 'node:readline';
import { setTimeout as delay } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';

const release = new URL('../../../target/release/', import.meta.url);
const SMG = process.env.SMG_BIN ?? fileURLToPath(new URL('smg', release));
const LAB = process.env.LAB_BIN ?? fileURLToPath(new URL('lab', release));
export const MODEL = 'demo-model';
const PATIENCE_MS = 20_000;

const running = [];
const stop = () => running.splice(0).forEach((child) => child.kill('SIGKILL'));
// A test run that is cut short leaves no engine behind.
process.once('exit', stop);

function start(command, args, stdout) {
  const child = spawn(command, args, { stdio: ['ignore', stdout, 'inherit'] });
  running.push(child);
  return child;
}

async function engine() {
  const child = start(LAB, ['engine', '--port', '0', '--model', MODEL], 'pipe');
  const [line] = await once(createInterface(child.stdout), 'line');
  if (!line.startsWith('ready http://')) throw new Error(`the engine said ${line} instead of its address`);
  return line.split(' ')[1];
}

async function freePort() {
  const probe = createServer().listen(0, '127.0.0.1');
  await once(probe, 'listening');
  const { port } = probe.address();
  probe.close();
  await once(probe, 'close');
  return port;
}

async function healthyWorkers(url) {
  try {
    const reply = await fetch(`${url}/workers`);
    return (await reply.json()).workers.filter((worker) => worker.is_healthy).length;
  } catch {
    return 0; // not listening yet
  }
}

/** Three engines and a gateway that lists them as healthy: `{ url, engines, stop }`. */
export async function startFleet() {
  const engines = await Promise.all([engine(), engine(), engine()]);
  const [port, metricsPort] = [await freePort(), await freePort()];
  const url = `http://127.0.0.1:${port}`;
  start(SMG, [
    'launch', '--host', '127.0.0.1', '--port', `${port}`,
    '--prometheus-host', '127.0.0.1', '--prometheus-port', `${metricsPort}`,
    '--policy', 'round_robin', '--routing-key-override', '--worker-urls', ...engines,
  ], 'ignore');
  const end = Date.now() + PATIENCE_MS;
  while ((await healthyWorkers(url)) < engines.length) {
    if (Date.now() > end) throw new Error('the gateway does not list its workers as healthy');
    await delay(50);
  }
  return { url, engines, stop };
}
