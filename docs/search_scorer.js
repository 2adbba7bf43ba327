// Guides come first, in the order of their words' weights (search_weights.py), then the API. But an
// object comes first of all if the query is its name, and the name has more than one word.
var Scorer = {
  score: ([docname, title, anchor, descr, score, filename, kind]) => {
    const query = (new URLSearchParams(window.location.search).get("q") || "").trim();
    if (kind === "object") {
      const name = title.split(".").slice(-query.split(".").length).join(".");
      const named = name.toLowerCase() === query.toLowerCase() && /[._]|[a-z][A-Z]/.test(name);
      return named ? score + 1000 : score - 1000;
    }
    if (docname.startsWith("api/")) return score - 1000;
    const words = splitQuery(query.toLowerCase()).filter((word) => !stopwords.has(word));
    const page = GUIDES.indexOf(docname);
    return words.reduce((sum, word) => sum + Scorer.weight(word, page), score / 100);
  },
  // A part of a word weighs as much as the word that weighs most.
  weight: (word, page) => {
    const stem = new Stemmer().stemWord(word);
    const stems = Object.hasOwn(WEIGHTS, stem)
      ? [stem]
      : Object.keys(WEIGHTS).filter((other) => other.includes(stem));
    return Math.max(0, ...stems.map((s) => WEIGHTS[s][page] || 0));
  },
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};
