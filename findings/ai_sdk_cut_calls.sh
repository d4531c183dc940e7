#!/usr/bin/env bash
# The AI SDK runs no tool of an answer that ends with `length`, although the call in it is whole: `generateText` of ai
# 6.0.326 returns it without its result after one step, where `tool_calls` as the reason gives a second step. A server whose
# model is cut behind a whole call ends such a run by the reason alone.
# Exits 0 while that is so, 1 when it changes. Wants Node.js 20 and npm; everything else goes into a temporary folder.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
npm install --silent --no-audit --no-fund --prefix "$work" ai@6.0.326 @ai-sdk/openai@3.0.141 zod@4.6.7
cat > calls.mjs <<'JS'
import { createServer } from 'node:http';
import { createRequire } from 'node:module';
import { createOpenAI } from '@ai-sdk/openai';
import { generateText, stepCountIs, tool } from 'ai';
import { z } from 'zod';

const version = (name) => createRequire(import.meta.url)(`${name}/package.json`).version;
for (const name of ['ai', '@ai-sdk/openai']) console.log(name, version(name));

let asked = 0;
const server = createServer(async (request, reply) => {
  for await (const _ of request);
  const called = { id: 'call_1', type: 'function', function: { name: 'weather', arguments: '{"city":"Paris"}' } };
  const first = { message: { role: 'assistant', content: null, tool_calls: [called] }, finish_reason: request.url.split('/')[1] };
  const last = { message: { role: 'assistant', content: 'It rains.' }, finish_reason: 'stop' };
  reply.setHeader('Content-Type', 'application/json');
  const choices = [{ index: 0, ...(asked++ ? last : first) }];
  reply.end(JSON.stringify({ id: 'c', object: 'chat.completion', created: 0, model: 'm', choices }));
});
await new Promise((done) => server.listen(0, '127.0.0.1', done));

const seen = {};
for (const reason of ['tool_calls', 'length']) {
  asked = 0;
  let runs = 0;
  const weather = tool({ inputSchema: z.object({ city: z.string() }), execute: async () => (runs++, 'rain') });
  const model = createOpenAI({ apiKey: 'none', baseURL: `http://127.0.0.1:${server.address().port}/${reason}` }).chat('m');
  try {
    const { steps, text } = await generateText({ model, prompt: '?', tools: { weather }, stopWhen: stepCountIs(5) });
    seen[reason] = `${steps.length} steps, the tool ran ${runs} times, text ${JSON.stringify(text)}`;
  } catch (error) {
    seen[reason] = `${error.name}, the tool ran ${runs} times`;
  }
  console.log(`${reason}: ${seen[reason]}`);
}
server.close();
process.exit(seen.tool_calls.includes('ran 1 times') && seen.length.includes('ran 0 times') ? 0 : 1);
JS
node calls.mjs
