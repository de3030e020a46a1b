// An application that uses the OpenAI SDK for JavaScript keeps its conversation on one worker.

import assert from 'node:assert/strict';
import { randomUUID } from 'node:crypto';
import { after, before, test } from 'node:test';

import OpenAI from 'openai';

import { MODEL, startFleet } from './fleet.mjs';

const ROUTED = 'x-smg-routed-worker-id';
const hello = [{ role: 'user', content: 'hello' }];
let fleet;
let client;

before(async () => {
  fleet = await startFleet();
  client = new OpenAI({ baseURL: `${fleet.url}/v1`, apiKey: 'none', maxRetries: 0 });
});

after(() => fleet?.stop());

/** One turn: the history goes out whole, the answer is added to it. */
async function turn(messages, { rid, headers, stream }) {
  messages.push({ role: 'user', content: `and then what? ${'tell me more. '.repeat(20)}` });
  const ask = { model: MODEL, messages, max_tokens: 16, ...(rid && { rid }) };
  if (stream) Object.assign(ask, { stream: true, stream_options: { include_usage: true } });
  const { data, response } = await client.chat.completions.create(ask, { headers }).withResponse();
  let text = '';
  let { usage } = data;
  if (stream) {
    for await (const chunk of data) {
      text += chunk.choices[0]?.delta.content ?? '';
      usage = chunk.usage ?? usage;
    }
  } else {
    text = data.choices[0].message.content;
  }
  messages.push({ role: 'assistant', content: text });
  return { worker: response.headers.get(ROUTED), text, cached: usage.prompt_tokens_details.cached_tokens };
}

function opening() {
  return [{ role: 'system', content: Array.from({ length: 60 }, randomUUID).join(' ') }];
}

function assertSticky(turns) {
  assert.equal(new Set(turns.map(({ worker }) => worker)).size, 1, JSON.stringify(turns));
  assert.ok(fleet.engines.includes(turns[0].worker), turns[0].worker);
  assert.ok(turns.every(({ text }) => text.length > 0));
  assert.ok(turns.slice(1).every(({ cached }) => cached > 0), JSON.stringify(turns));
}

test('streamed turns named by rid stay on one worker', async () => {
  const [messages, key, turns] = [opening(), randomUUID(), []];
  for (let n = 1; n <= 5; n += 1) turns.push(await turn(messages, { rid: `${key}_t${n}`, stream: true }));
  assertSticky(turns);
});

test('turns named by header stay on one worker', async () => {
  const [messages, headers, turns] = [opening(), { 'x-smg-routing-key': randomUUID() }, []];
  for (let n = 1; n <= 5; n += 1) turns.push(await turn(messages, { headers }));
  assertSticky(turns);
});

test('an aborted stream leaves the conversation where it was', async () => {
  const [messages, key] = [opening(), randomUUID()];
  const first = await turn(messages, { rid: `${key}_t1`, stream: true });
  const { data, response } = await client.chat.completions
    .create({ model: MODEL, messages, max_tokens: 400, rid: `${key}_t2`, stream: true })
    .withResponse();
  for await (const chunk of data) {
    assert.ok(chunk.choices.length > 0);
    break; // the SDK hangs up
  }
  assert.equal(response.headers.get(ROUTED), first.worker);
  assertSticky([first, await turn(messages, { rid: `${key}_t2_r1`, stream: true })]);
});

test('an unknown model is a NotFoundError with its code', async () => {
  await assert.rejects(client.chat.completions.create({ model: 'no-such-model', messages: hello }), (error) => {
    assert.ok(error instanceof OpenAI.NotFoundError);
    assert.equal(error.code, 'model_not_found');
    assert.equal(error.headers.get('x-smg-error-code'), 'model_not_found');
    return true;
  });
});

test('a request without messages is a BadRequestError', async () => {
  await assert.rejects(client.chat.completions.create({ model: MODEL }), OpenAI.BadRequestError);
});

test('models of the fleet are listed', async () => {
  const ids = [];
  for await (const model of client.models.list()) ids.push(model.id);
  assert.ok(ids.includes(MODEL));
});
