// OpenAI's own client for Node.js; what it prints is as in rows.py.
"use strict";

const assert = require("node:assert/strict");
const { OpenAI } = require("openai");
const { zodResponseFormat } = require("openai/helpers/zod");
const { z } = require("zod");

const CLIENT = "openai for Node.js";
const client = new OpenAI({ baseURL: process.env.GATEWAY_URL, apiKey: "none-needed" });
const SENTENCE =
  "It is 21 degrees in Paris and the sky is clear, so leave the umbrella at home today.";
const [PLAIN, CHECKED] = ["plain", "checked"];
const Weather = z.object({ city: z.string(), degrees: z.int() });
const parameters = {
  type: "object",
  properties: { city: { type: "string" }, days: { type: "integer" } },
  required: ["city", "days"],
};
const user = (content) => [{ role: "user", content }];

async function create(prompt) {
  const completion = await client.chat.completions.create({
    model: PLAIN,
    messages: user(prompt),
  });
  assert.equal(completion.choices[0].message.content, SENTENCE);
}

async function stream(prompt) {
  const chunks = await client.chat.completions.create({
    model: PLAIN,
    messages: user(prompt),
    stream: true,
  });
  let text = "";
  for await (const chunk of chunks) text += chunk.choices[0]?.delta?.content ?? "";
  assert.equal(text, SENTENCE);
}

async function parse(prompt) {
  const completion = await client.chat.completions.parse({
    model: CHECKED,
    messages: user(prompt),
    response_format: zodResponseFormat(Weather, "weather"),
  });
  assert.deepEqual(completion.choices[0].message.parsed, { city: "Paris", degrees: 21 });
}

async function runTools(prompt) {
  const asked = [];
  const get_weather = (given) => {
    asked.push(given);
    return "21 degrees";
  };
  const runner = client.chat.completions.runTools({
    model: CHECKED,
    messages: user(prompt),
    tools: [
      {
        type: "function",
        function: { name: "get_weather", parse: JSON.parse, function: get_weather, parameters },
      },
    ],
  });
  assert.equal(await runner.finalContent(), SENTENCE);
  assert.deepEqual(asked, [{ city: "Paris", days: 21 }]);
}

async function responses(prompt) {
  const reply = await client.responses.create({ model: PLAIN, input: prompt });
  assert.equal(reply.output_text, SENTENCE);
}

async function drawsFor(prompt) {
  const query = new URLSearchParams({ containing: prompt });
  const answer = await fetch(`${process.env.UPSTREAM_URL}/requests?${query}`);
  return (await answer.json()).requests;
}

(async () => {
  const rows = {
    "chat.completions.create": create,
    "stream: true": stream,
    "chat.completions.parse": parse,
    "chat.completions.runTools": runTools,
    "responses.create": responses,
  };
  for (const [row, work] of Object.entries(rows)) {
    const prompt = `How is the weather? (${CLIENT}: ${row})`;
    let problem = null;
    try {
      await work(prompt);
    } catch (error) {
      console.error(error);
      problem = `${error.name}: ${error.message}`;
    }
    const draws = await drawsFor(prompt);
    console.log(JSON.stringify({ client: CLIENT, row, problem, draws }));
  }
})();
