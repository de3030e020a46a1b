// An agent that uses the Anthropic SDK for JavaScript: it counts tokens, calls tools side by side and streams.

import assert from 'node:assert/strict';
import { randomUUID } from 'node:crypto';
import { after, before, test } from 'node:test';

import Anthropic from '@anthropic-ai/sdk';

import { MODEL, startFleet } from './fleet.mjs';

const ROUTED = 'x-smg-routed-worker-id';
const betas = ['claude-code-20250219'];
const tools = ['read', 'grep'].map((name) => ({ name, input_schema: { type: 'object', properties: {} } }));
let fleet;
let client;

before(async () => {
  fleet = await startFleet();
  client = new Anthropic({ baseURL: fleet.url, apiKey: 'none', maxRetries: 0 });
});

after(() => fleet?.stop());

test('an agent stays on one worker and its tools run side by side', async () => {
  const headers = { 'x-smg-routing-key': randomUUID() };
  const system = Array.from({ length: 60 }, randomUUID).join(' ');
  const messages = [{ role: 'user', content: 'Find out why the build is red.' }];
  const workers = new Set();
  for (let step = 0; step < 4; step += 1) {
    const ask = { model: MODEL, system, tools, messages, betas };
    const { input_tokens: counted } = await client.beta.messages.countTokens(ask, { headers });
    const stream = client.beta.messages.stream({ ...ask, max_tokens: 32 }, { headers });
    const { response } = await stream.withResponse();
    const { content, stop_reason: reason, usage } = await stream.finalMessage();
    workers.add(response.headers.get(ROUTED));
    assert.equal(usage.input_tokens + usage.cache_read_input_tokens, counted);
    assert.ok(step === 0 || usage.cache_read_input_tokens > 0);
    const calls = content.filter(({ type }) => type === 'tool_use');
    assert.deepEqual(calls.map(({ name }) => name), step % 2 === 0 ? ['read', 'grep'] : []);
    assert.equal(reason, calls.length > 0 ? 'tool_use' : 'end_turn');
    messages.push({ role: 'assistant', content });
    const results = calls.map(({ id }) => ({ type: 'tool_result', tool_use_id: id, content: 'nothing there' }));
    messages.push({ role: 'user', content: results.length > 0 ? results : 'And then?' });
  }
  assert.equal(workers.size, 1);
});

test('an unknown model is a NotFoundError', async () => {
  const hello = [{ role: 'user', content: 'hello' }];
  await assert.rejects(
    client.messages.create({ model: 'no-such-model', max_tokens: 4, messages: hello }),
    Anthropic.NotFoundError,
  );
});
