#!/usr/bin/env bash
# The AI SDK's second turn over the Responses API does not bring back what was answered: it names the item by its id
# alone (`item_reference`), whether or not the server's answer said that it was stored (`"store": false`). A server
# that keeps nothing sees a conversation without its own answers.
# Exits 0 while that is so, 1 when it changes. Wants Node.js 20 and npm; everything else goes into a temporary folder.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
npm install --silent --no-audit --no-fund --prefix "$work" ai@6.0.326 @ai-sdk/openai@3.0.141
cat > turns.mjs <<'JS'
import { createServer } from 'node:http';
import { createRequire } from 'node:module';
import { createOpenAI } from '@ai-sdk/openai';
import { generateText } from 'ai';

const version = (name) => createRequire(import.meta.url)(`${name}/package.json`).version;
console.log('ai', version('ai'), '@ai-sdk/openai', version('@ai-sdk/openai'));

const inputs = [];
const server = createServer(async (request, reply) => {
  let body = '';
  for await (const piece of request) body += piece;
  const call = JSON.parse(body);
  inputs.push(call.input);
  const text = { type: 'output_text', text: 'Hello.', annotations: [] };
  const message = { id: `msg_${inputs.length}`, type: 'message', role: 'assistant', status: 'completed', content: [text] };
  const usage = { input_tokens: 1, output_tokens: 1, total_tokens: 2 };
  reply.setHeader('Content-Type', 'application/json');
  reply.end(JSON.stringify({
    id: `resp_${inputs.length}`, object: 'response', created_at: 0, model: call.model, status: 'completed', store: false,
    output: [message], usage,
  }));
});
await new Promise((done) => server.listen(0, '127.0.0.1', done));
const model = createOpenAI({ baseURL: `http://127.0.0.1:${server.address().port}/v1`, apiKey: 'none' })('m');
const messages = [{ role: 'user', content: 'Say hello.' }];
const first = await generateText({ model, messages, maxRetries: 0 });
messages.push(...first.response.messages, { role: 'user', content: 'Again.' });
await generateText({ model, messages, maxRetries: 0 });
server.close();
console.log('the second turn sends', JSON.stringify(inputs[1]));
const answered = inputs[1][1];
process.exit(answered.type === 'item_reference' && answered.id === 'msg_1' && !('content' in answered) ? 0 : 1);
JS
node turns.mjs
