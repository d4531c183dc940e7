// Run in a folder with Vercel's `ai`: prints as JSON what it makes of a server's answers.
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateText, jsonSchema, Output, streamText, tool } from "ai";

const [url, crowded, asked] = process.argv.slice(2);
const wanted = JSON.parse(asked);
const provide = (address) =>
  createOpenAICompatible({
    name: "lengthwise",
    baseURL: `${address}/v1`,
    apiKey: "none",
    supportsStructuredOutputs: true,
  });
const provider = provide(url);
const schema = jsonSchema(wanted.tool.function.parameters);
const common = { model: provider("fake"), messages: wanted.messages, maxRetries: 0 };
const tools = { tools: { Weather: tool({ description: "Tells it.", inputSchema: schema }) }, toolChoice: "required" };

const inputs = (calls) => calls.map((call) => JSON.stringify(call.input));
const whole = await generateText({ ...common, ...tools });
const streamed = streamText({ ...common, ...tools });
await streamed.consumeStream();
const said = [];
for await (const piece of streamText(common).textStream) said.push(piece);
const errors = [];
for (const { model = "fake", max_tokens } of wanted.wrong) {
  await generateText({ ...common, model: provider(model), maxOutputTokens: max_tokens }).catch((error) =>
    errors.push(error.statusCode),
  );
}
const gaveUp = await generateText({
  ...common,
  messages: wanted.stalled,
  abortSignal: AbortSignal.timeout(wanted.soon * 1000),
}).catch((error) => error.name === "TimeoutError");
const patient = { ...common, model: provide(crowded)("fake"), maxRetries: 2 };
console.log(
  JSON.stringify({
    tools: inputs(whole.toolCalls),
    "streamed tools": inputs(await streamed.toolCalls),
    text: (await generateText(common)).text,
    "streamed text": said.join(""),
    schema: JSON.stringify((await generateText({ ...common, output: Output.object({ schema }) })).output),
    errors,
    "time-out": gaveUp === true,
    retry: (await generateText(patient)).text,
  }),
);
