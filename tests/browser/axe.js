// What can be computed of a page's accessibility: contrast, names, headings, focus.
(() => {
  const parse = (colour) => {
    const [r, g, b, a = 1] = colour.match(/[\d.]+/g).map(Number);
    return { r, g, b, a };
  };
  const over = (top, below) => ({
    r: top.r * top.a + below.r * (1 - top.a),
    g: top.g * top.a + below.g * (1 - top.a),
    b: top.b * top.a + below.b * (1 - top.a),
    a: 1,
  });
  // WCAG 2.2, relative luminance and contrast ratio.
  const luminance = ({ r, g, b }) => {
    const [x, y, z] = [r, g, b].map((part) => {
      const share = part / 255;
      return share <= 0.04045 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
    });
    return 0.2126 * x + 0.7152 * y + 0.0722 * z;
  };
  const contrast = (one, other) => {
    const [low, high] = [luminance(one), luminance(other)].sort((a, b) => a - b);
    return (high + 0.05) / (low + 0.05);
  };
  const background = (element) => {
    const layers = [];
    for (let e = element; e; e = e.parentElement) {
      const colour = parse(getComputedStyle(e).backgroundColor);
      if (colour.a > 0) layers.push(colour);
      if (colour.a === 1) break;
    }
    return layers.reverse().reduce((below, top) => over(top, below), { r: 255, g: 255, b: 255, a: 1 });
  };
  const visible = (element) => element.checkVisibility({ visibilityProperty: true, contentVisibilityAuto: true });
  const fill = (element) => {
    const style = getComputedStyle(element);
    return { ...parse(style.fill), a: Number(style.fillOpacity) };
  };

  const lowText = () => {
    const low = [];
    const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    while (walker.nextNode()) {
      const element = walker.currentNode.parentElement;
      const text = walker.currentNode.textContent.trim();
      if (!text || !visible(element) || element.closest("title, style, script")) continue;
      const style = getComputedStyle(element);
      let below = background(element);
      let colour = style.color;
      if (element instanceof SVGElement) {
        colour = style.fill;
        const box = element.closest(".bar")?.querySelector(".box");
        if (box) below = over(fill(box), below);
      }
      const ratio = contrast(over(parse(colour), below), below);
      const size = parseFloat(style.fontSize);
      const large = size >= 24 || (size >= 18.66 && Number(style.fontWeight) >= 700);
      if (ratio < (large ? 3 : 4.5)) low.push(`${ratio.toFixed(2)} ${text.slice(0, 40)}`);
    }
    return low;
  };

  const lowSigns = () => {
    const low = [];
    document.querySelectorAll(".bar, .sign").forEach((sign) => {
      const box = sign.querySelector(".box");
      const mark = sign.querySelector(".mark");
      const card = background(document.querySelector(".card, .mlr-cell"));
      const inside = over(fill(box), card);
      const edge = contrast(parse(getComputedStyle(box).stroke), card);
      const glyph = contrast(parse(getComputedStyle(mark).stroke), inside);
      if (edge < 3) low.push(`edge ${edge.toFixed(2)} ${box.getAttribute("class")}`);
      if (glyph < 3) low.push(`mark ${glyph.toFixed(2)} ${box.getAttribute("class")}`);
    });
    document.querySelectorAll(".col, .fill").forEach((bar) => {
      const ratio = contrast(over(fill(bar), background(bar.closest(".card"))), background(bar.closest(".card")));
      if (ratio < 3) low.push(`bar ${ratio.toFixed(2)}`);
    });
    return low;
  };

  const structure = () => {
    const wrong = [];
    const ids = [...document.querySelectorAll("[id]")].map((e) => e.id);
    ids.filter((id, place) => ids.indexOf(id) !== place).forEach((id) => wrong.push(`id twice: ${id}`));
    const levels = [...document.querySelectorAll("h1, h2, h3, h4")].map((h) => Number(h.tagName[1]));
    if (levels.filter((level) => level === 1).length !== 1) wrong.push("not one h1");
    if (!document.documentElement.lang) wrong.push("no language");
    if (!document.querySelector("main")) wrong.push("no main");
    document.querySelectorAll("[aria-controls], [aria-labelledby]").forEach((e) => {
      const id = e.getAttribute("aria-controls") || e.getAttribute("aria-labelledby");
      if (!document.getElementById(id)) wrong.push(`nothing has the id ${id}`);
    });
    document.querySelectorAll("table").forEach((table) => {
      if (!table.querySelector('th[scope="col"]')) wrong.push("a table without headers");
    });
    return wrong;
  };

  return { lowText, lowSigns, structure };
})();
