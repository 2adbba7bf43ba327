// Guides come before objects of the API, unless somebody searches for a name.
var Scorer = {
  score: ([docname, title, anchor, descr, score, filename, kind]) => {
    const query = new URLSearchParams(window.location.search).get("q") || "";
    if (/[._A-Z]/.test(query.trim().slice(1))) return score;
    if (kind === "object" || docname.startsWith("api/")) return score - 30;
    const page = title.split(" > ")[0].toLowerCase();
    const named = query.toLowerCase().split(/\s+/).some((word) => word && page.includes(word));
    return named ? score + 30 : score;
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
