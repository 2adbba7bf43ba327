// What the scripts of the clients for Node.js share: as in rows.py.
"use strict";

const assert = require("node:assert/strict");

const AGAIN = "And the day after?";
const SERVERS = ["a strict server", "a talkative server"];

async function requests(...texts) {
  const query = new URLSearchParams(texts.map((text) => ["containing", text]));
  return (await fetch(`${process.env.UPSTREAM_URL}/requests?${query}`)).json();
}

async function problemOf(call, prompt) {
  try {
    await call(prompt);
    const { requests: second } = await requests(prompt, AGAIN, '"role": "assistant"');
    return second ? null : "there was no second turn";
  } catch (error) {
    console.error(error);
    return `${error.name}: ${error.message}`;
  }
}

async function run(client, modes) {
  for (const [mode, calls] of Object.entries(modes)) {
    for (const [name, call] of Object.entries(calls)) {
      const problems = [];
      let wrong = 0;
      for (const server of SERVERS) {
        const prompt = `How is the weather? (${client}: ${mode}, ${name}, with ${server})`;
        const problem = await problemOf(call, prompt);
        if (problem) problems.push(`${server}: ${problem}`);
        wrong += (await requests(prompt)).wrong;
      }
      console.log(JSON.stringify({ client, mode, call: name, redrawn: wrong > 0, problems }));
    }
  }
}

/** A tool that remembers its arguments, and a check that it was asked in both turns. */
function weather() {
  const asked = [];
  return {
    parameters: {
      type: "object",
      properties: { city: { type: "string" }, days: { type: "integer" } },
      required: ["city", "days"],
    },
    ask(given) {
      asked.push({ ...given });
      return "21 degrees";
    },
    check: () => assert.deepEqual(asked, Array(2).fill({ city: "Paris", days: 21 })),
  };
}

module.exports = {
  AGAIN,
  BASE_URL: process.env.GATEWAY_URL,
  CHECKED: "checked",
  EXPECTED: { city: "Paris", degrees: 21 },
  KEY: "none-needed",
  PLAIN: "plain",
  SENTENCE: "It is 21 degrees in Paris and the sky is clear, so leave the umbrella at home today.",
  run,
  weather,
};
