// Run in a folder with Vercel's `ai` and `@ai-sdk/openai`, whose default is the Responses API: an agent that calls a tool in
// three turns, then is asked twice more, with all that was said before.
import { createOpenAI } from "@ai-sdk/openai";
import { generateText, stepCountIs, streamText, tool } from "ai";
import { z } from "zod";

const model = createOpenAI({ baseURL: `${process.argv[2]}/v1`, apiKey: "none" })("long");
const weather = tool({
  description: "Tells it.",
  inputSchema: z.object({ city: z.string() }),
  execute: async ({ city }) => ({ city, degrees: 20 }),
});
const common = { model, tools: { weather }, stopWhen: stepCountIs(5), maxRetries: 0 };
const messages = [{ role: "user", content: "How warm is it in Graz, Wien and Linz?" }];
const whole = await generateText({ ...common, messages });
messages.push(...whole.response.messages, { role: "user", content: "Again." });
const streamed = streamText({ ...common, messages });
await streamed.consumeStream({ onError: (error) => { throw error; } });
messages.push(...(await streamed.response).messages, { role: "user", content: "And again." });
console.log((await generateText({ ...common, messages })).text);
