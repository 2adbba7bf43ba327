// OpenAI's Agents SDK for Node.js.
"use strict";

const assert = require("node:assert/strict");
const {
  Agent,
  OpenAIChatCompletionsModel,
  OpenAIResponsesModel,
  Runner,
  setTracingDisabled,
  tool,
} = require("@openai/agents");
const { OpenAI } = require("openai");
const { z } = require("zod");
const { AGAIN, BASE_URL, CHECKED, EXPECTED, KEY, PLAIN, SENTENCE, run, weather } = require("./rows.cjs");

setTracingDisabled(true);
const Weather = z.object({ city: z.string(), degrees: z.int() });
const client = new OpenAI({ baseURL: BASE_URL, apiKey: KEY });

async function ask(Kind, name, prompt, given, expected, stream = false) {
  const agent = new Agent({ name: "weather", model: new Kind(client, name), ...given });
  const runner = new Runner();
  let items = [];
  for (const content of [prompt, AGAIN]) {
    items.push({ role: "user", content });
    const result = await runner.run(agent, items, { stream });
    if (stream) {
      let text = "";
      for await (const part of result.toTextStream()) text += part;
      await result.completed;
      assert.equal(text, SENTENCE);
    }
    assert.deepEqual(result.finalOutput, expected);
    items = result.history;
  }
}

async function tools(Kind, prompt, stream = false) {
  const { ask: execute, check } = weather();
  const parameters = z.object({ city: z.string(), days: z.int() });
  const given = { tools: [tool({ name: "get_weather", description: "Weather.", parameters, execute })] };
  await ask(Kind, CHECKED, prompt, given, SENTENCE, stream);
  check();
}

const [Chat, Responses] = [OpenAIChatCompletionsModel, OpenAIResponsesModel];
run("OpenAI Agents SDK for Node.js", {
  chat: { run: (prompt) => ask(Chat, PLAIN, prompt, {}, SENTENCE) },
  stream: { "run, stream: true": (prompt) => ask(Chat, PLAIN, prompt, {}, SENTENCE, true) },
  tools: {
    tools: (prompt) => tools(Chat, prompt),
    "tools, stream: true": (prompt) => tools(Chat, prompt, true),
  },
  typed: { outputType: (prompt) => ask(Chat, CHECKED, prompt, { outputType: Weather }, EXPECTED) },
  responses: {
    run: (prompt) => ask(Responses, PLAIN, prompt, {}, SENTENCE),
    "stream: true": (prompt) => ask(Responses, PLAIN, prompt, {}, SENTENCE, true),
    tools: (prompt) => tools(Responses, prompt),
    outputType: (prompt) => ask(Responses, CHECKED, prompt, { outputType: Weather }, EXPECTED),
  },
});
