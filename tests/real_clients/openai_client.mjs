// Run in a folder with Node's `openai`: prints as JSON what that client makes of a server's answers.
import OpenAI from "openai";

const [url, crowded, asked] = process.argv.slice(2);
const { messages, stalled, soon, wrong, tool } = JSON.parse(asked);
const client = new OpenAI({ baseURL: `${url}/v1`, apiKey: "none", maxRetries: 0, timeout: 60_000 });
const common = { model: "fake", messages };
const tools = { tools: [tool], tool_choice: "required", parallel_tool_calls: true };
const schema = { type: "json_schema", json_schema: { name: "weather", schema: tool.function.parameters, strict: true } };

const inputs = (completion) => completion.choices[0].message.tool_calls.map((call) => call.function.arguments);
const whole = await client.chat.completions.create({ ...common, ...tools });
const summed = await client.chat.completions.stream({ ...common, ...tools }).finalChatCompletion();
const text = await client.chat.completions.create(common);
const parsed = await client.chat.completions.create({ ...common, response_format: schema });
let said = "";
for await (const chunk of await client.chat.completions.create({ ...common, stream: true })) {
  said += chunk.choices[0]?.delta?.content ?? "";
}
const patient = new OpenAI({ baseURL: `${crowded}/v1`, apiKey: "none", maxRetries: 2 });
const scored = await client.chat.completions.create({ ...common, logprobs: true, top_logprobs: 2 });
const errors = [];
for (const one of wrong) {
  await client.chat.completions.create({ ...common, ...one }).catch((error) => errors.push(error.status));
}
const gaveUp = await client.chat.completions
  .create({ ...common, messages: stalled }, { timeout: soon * 1000 })
  .catch((error) => error instanceof OpenAI.APIConnectionTimeoutError);
console.log(
  JSON.stringify({
    tools: inputs(whole),
    "streamed tools": inputs(summed),
    text: text.choices[0].message.content,
    "streamed text": said,
    schema: parsed.choices[0].message.content,
    n: (await client.chat.completions.create({ ...common, n: 2 })).choices.map((one) => one.message.content),
    logprobs: Buffer.from(scored.choices[0].logprobs.content.flatMap((one) => one.bytes)).toString(),
    errors,
    "time-out": gaveUp === true,
    retry: (await patient.chat.completions.create(common)).choices[0].message.content,
  }),
);
