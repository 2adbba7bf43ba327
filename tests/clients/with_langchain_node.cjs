// LangChain's ChatOpenAI for Node.js.
"use strict";

const assert = require("node:assert/strict");
const { HumanMessage, ToolMessage } = require("@langchain/core/messages");
const { tool } = require("@langchain/core/tools");
const { ChatOpenAI } = require("@langchain/openai");
const { z } = require("zod");
const { AGAIN, BASE_URL, CHECKED, EXPECTED, KEY, PLAIN, SENTENCE, run, weather } = require("./rows.cjs");

const Weather = z.object({ city: z.string(), degrees: z.int() });
const chatModel = (model, useResponsesApi) =>
  new ChatOpenAI({ model, apiKey: KEY, useResponsesApi, configuration: { baseURL: BASE_URL } });

async function streamed(model, messages) {
  let whole;
  for await (const chunk of await model.stream(messages)) whole = whole?.concat(chunk) ?? chunk;
  return whole;
}

async function talk(prompt, { stream = false, responses = false } = {}) {
  const model = chatModel(PLAIN, responses);
  const messages = [];
  for (const text of [prompt, AGAIN]) {
    messages.push(new HumanMessage(text));
    const reply = stream ? await streamed(model, messages) : await model.invoke(messages);
    assert.equal(reply.text, SENTENCE);
    messages.push(reply);
  }
}

async function tools(prompt, { stream = false, responses = false } = {}) {
  const { ask, check, parameters } = weather();
  const get_weather = tool(ask, { name: "get_weather", schema: parameters });
  const model = chatModel(CHECKED, responses).bindTools([get_weather]);
  const messages = [];
  for (const text of [prompt, AGAIN]) {
    messages.push(new HumanMessage(text));
    let reply;
    do {
      reply = stream ? await streamed(model, messages) : await model.invoke(messages);
      messages.push(reply);
      for (const { id, args } of reply.tool_calls)
        messages.push(new ToolMessage({ content: ask(args), tool_call_id: id }));
    } while (reply.tool_calls.length);
    assert.equal(reply.text, SENTENCE);
  }
  check();
}

async function typed(prompt, { responses = false, ...how } = {}) {
  const model = chatModel(CHECKED, responses).withStructuredOutput(Weather, {
    name: "weather",
    includeRaw: true,
    ...how,
  });
  const messages = [];
  for (const text of [prompt, AGAIN]) {
    messages.push(new HumanMessage(text));
    const { parsed, raw } = await model.invoke(messages);
    assert.deepEqual(parsed, EXPECTED);
    messages.push(raw);
    for (const { id } of raw.tool_calls)
      messages.push(new ToolMessage({ content: "21 degrees", tool_call_id: id }));
  }
}

run("LangChain for Node.js", {
  chat: { invoke: talk },
  stream: { stream: (prompt) => talk(prompt, { stream: true }) },
  tools: {
    bindTools: tools,
    "bindTools, stream": (prompt) => tools(prompt, { stream: true }),
  },
  typed: {
    withStructuredOutput: (prompt) => typed(prompt, { method: "jsonSchema" }),
    "withStructuredOutput, functionCalling": (prompt) =>
      typed(prompt, { method: "functionCalling" }),
  },
  responses: {
    "useResponsesApi: true": (prompt) => talk(prompt, { responses: true }),
    stream: (prompt) => talk(prompt, { stream: true, responses: true }),
    bindTools: (prompt) => tools(prompt, { responses: true }),
    withStructuredOutput: (prompt) => typed(prompt, { method: "jsonSchema", responses: true }),
  },
});
