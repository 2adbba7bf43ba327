// OpenAI's own client for Node.js.
"use strict";

const assert = require("node:assert/strict");
const { OpenAI } = require("openai");
const { zodResponseFormat, zodTextFormat } = require("openai/helpers/zod");
const { z } = require("zod");
const { AGAIN, BASE_URL, CHECKED, EXPECTED, KEY, PLAIN, SENTENCE, run, weather } = require("./rows.cjs");

const client = new OpenAI({ baseURL: BASE_URL, apiKey: KEY });
const Weather = z.object({ city: z.string(), degrees: z.int() });

async function create(prompt) {
  const messages = [];
  for (const content of [prompt, AGAIN]) {
    messages.push({ role: "user", content });
    const completion = await client.chat.completions.create({ model: PLAIN, messages });
    assert.equal(completion.choices[0].message.content, SENTENCE);
    messages.push(completion.choices[0].message);
  }
}

async function stream(prompt) {
  const messages = [];
  for (const content of [prompt, AGAIN]) {
    messages.push({ role: "user", content });
    const chunks = client.chat.completions.stream({ model: PLAIN, messages });
    let text = "";
    for await (const chunk of chunks) text += chunk.choices[0]?.delta?.content ?? "";
    assert.equal(text, SENTENCE);
    messages.push((await chunks.finalChatCompletion()).choices[0].message);
  }
}

async function parse(prompt) {
  const messages = [];
  const response_format = zodResponseFormat(Weather, "weather");
  for (const content of [prompt, AGAIN]) {
    messages.push({ role: "user", content });
    const completion = await client.chat.completions.parse({ model: CHECKED, messages, response_format });
    assert.deepEqual(completion.choices[0].message.parsed, EXPECTED);
    messages.push(completion.choices[0].message);
  }
}

async function runTools(prompt, stream) {
  const { ask, check, parameters } = weather();
  const described = { name: "get_weather", parse: JSON.parse, function: ask, parameters };
  const tools = [{ type: "function", function: described }];
  let messages = [];
  for (const content of [prompt, AGAIN]) {
    messages.push({ role: "user", content });
    const runner = client.chat.completions.runTools({ model: CHECKED, messages, tools, stream });
    assert.equal(await runner.finalContent(), SENTENCE);
    messages = [...runner.messages];
  }
  check();
}

async function responses(prompt) {
  const input = [];
  for (const content of [prompt, AGAIN]) {
    input.push({ role: "user", content });
    const reply = await client.responses.create({ model: PLAIN, input });
    assert.equal(reply.output_text, SENTENCE);
    input.push(...reply.output);
  }
}

async function streamedResponses(prompt) {
  const input = [];
  for (const content of [prompt, AGAIN]) {
    input.push({ role: "user", content });
    const reply = await client.responses.stream({ model: PLAIN, input }).finalResponse();
    assert.equal(reply.output_text, SENTENCE);
    input.push(...reply.output);
  }
}

async function responsesWithTools(prompt) {
  const { ask, check, parameters } = weather();
  const tools = [{ type: "function", name: "get_weather", parameters, strict: false }];
  const input = [];
  for (const content of [prompt, AGAIN]) {
    input.push({ role: "user", content });
    let reply = await client.responses.create({ model: CHECKED, input, tools });
    const call = reply.output.find((item) => item.type === "function_call");
    const output = ask(JSON.parse(call.arguments));
    input.push(...reply.output, { type: "function_call_output", call_id: call.call_id, output });
    reply = await client.responses.create({ model: CHECKED, input, tools });
    assert.equal(reply.output_text, SENTENCE);
    input.push(...reply.output);
  }
  check();
}

async function parsedResponses(prompt) {
  const input = [];
  const text = { format: zodTextFormat(Weather, "weather") };
  for (const content of [prompt, AGAIN]) {
    input.push({ role: "user", content });
    const reply = await client.responses.parse({ model: CHECKED, input, text });
    assert.deepEqual(reply.output_parsed, EXPECTED);
    input.push(...reply.output);
  }
}

run("openai for Node.js", {
  chat: { "chat.completions.create": create },
  stream: { "chat.completions.stream": stream },
  tools: {
    "chat.completions.runTools": (prompt) => runTools(prompt, false),
    "runTools, stream: true": (prompt) => runTools(prompt, true),
  },
  typed: { "chat.completions.parse": parse },
  responses: {
    "responses.create": responses,
    "responses.stream": streamedResponses,
    "responses.create, tools": responsesWithTools,
    "responses.parse": parsedResponses,
  },
});
