// Vercel's AI SDK.
"use strict";

const assert = require("node:assert/strict");
const { createOpenAI } = require("@ai-sdk/openai");
const { createOpenAICompatible } = require("@ai-sdk/openai-compatible");
const {
  Output,
  defaultSettingsMiddleware,
  generateText,
  jsonSchema,
  stepCountIs,
  streamText,
  tool,
  wrapLanguageModel,
} = require("ai");
const { z } = require("zod");
const { AGAIN, BASE_URL, CHECKED, EXPECTED, KEY, PLAIN, SENTENCE, run, weather } = require("./rows.cjs");

const openai = createOpenAI({ baseURL: BASE_URL, apiKey: KEY });
const compatible = createOpenAICompatible({
  name: "gateway",
  baseURL: BASE_URL,
  apiKey: KEY,
  includeUsage: true,
  supportsStructuredOutputs: true,
});
const Weather = z.object({ city: z.string(), degrees: z.int() });

async function talk(model, prompt, given, check) {
  const messages = [];
  for (const content of [prompt, AGAIN]) {
    messages.push({ role: "user", content });
    const reply = await generateText({ model, messages, ...given, maxRetries: 0 });
    check(reply);
    messages.push(...reply.response.messages);
  }
}

async function stream(model, prompt, given = {}) {
  const messages = [];
  for (const content of [prompt, AGAIN]) {
    messages.push({ role: "user", content });
    const reply = streamText({ model, messages, ...given, maxRetries: 0 });
    let text = "";
    for await (const part of reply.textStream) text += part;
    assert.equal(text, SENTENCE);
    messages.push(...(await reply.response).messages);
  }
}

const saysIt = (reply) => assert.equal(reply.text, SENTENCE);

async function loop(prompt, work) {
  const { ask, check, parameters } = weather();
  const get_weather = tool({ inputSchema: jsonSchema(parameters), execute: ask });
  await work({ tools: { get_weather }, stopWhen: stepCountIs(3) });
  check();
}

const typed = (model, prompt) =>
  talk(model, prompt, { output: Output.object({ schema: Weather }) }, (reply) =>
    assert.deepEqual(reply.output, EXPECTED),
  );

const tools = (model, prompt) => loop(prompt, (given) => talk(model, prompt, given, saysIt));
const streamedTools = (model, prompt) => loop(prompt, (given) => stream(model, prompt, given));

// Without it, the SDK refers to what the server has stored, and a gateway stores nothing.
const responses = (name) =>
  wrapLanguageModel({
    model: openai.responses(name),
    middleware: defaultSettingsMiddleware({
      settings: { providerOptions: { openai: { store: false } } },
    }),
  });
const kinds = (calls, provider) => ({
  chat: { generateText: (prompt) => talk(provider(PLAIN), prompt, {}, saysIt) },
  stream: { streamText: (prompt) => stream(provider(PLAIN), prompt) },
  tools: {
    "generateText, tools": (prompt) => tools(provider(CHECKED), prompt),
    "streamText, tools": (prompt) => streamedTools(provider(CHECKED), prompt),
  },
  typed: { "generateText, Output.object": (prompt) => typed(provider(CHECKED), prompt) },
  ...calls,
});

(async () => {
  await run("AI SDK, openai", kinds({
    responses: {
      generateText: (prompt) => talk(responses(PLAIN), prompt, {}, saysIt),
      streamText: (prompt) => stream(responses(PLAIN), prompt),
      "generateText, tools": (prompt) => tools(responses(CHECKED), prompt),
      "streamText, tools": (prompt) => streamedTools(responses(CHECKED), prompt),
      "generateText, Output.object": (prompt) => typed(responses(CHECKED), prompt),
    },
  }, openai.chat));
  await run("AI SDK, openai-compatible", kinds({}, compatible.chatModel));
})();
