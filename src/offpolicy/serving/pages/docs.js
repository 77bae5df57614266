"use strict";
const made = (tag, text, kind) => { const e = document.createElement(tag); e.textContent = text; if (kind) e.className = kind; return e; };
const kind = (field) => field.type || (field.anyOf || []).map(kind).join(" or ") || "anything";

function fields(schema) {
  const table = made("table", "");
  const head = made("tr", "");
  head.append(...["field", "type", "meaning"].map((t) => made("th", t)));
  table.append(head);
  const needed = schema.required || [];
  for (const [name, field] of Object.entries(schema.properties)) {
    const tr = made("tr", "");
    const type = kind(field) + (field.type === "array" && field.items ? " of " + kind(field.items) : "");
    tr.append(made("td", name + (needed.includes(name) ? " *" : "")), made("td", type), made("td", field.description || ""));
    table.append(tr);
  }
  const scroll = made("div", "", "scroll");
  scroll.append(table);
  return scroll;
}

fetch("openapi.json").then((answer) => answer.json()).then((api) => {
  const schema = (content) => api.components.schemas[content["application/json"].schema.oneOf[0].$ref.split("/").pop()];
  for (const [path, methods] of Object.entries(api.paths)) {
    for (const [method, about] of Object.entries(methods)) {
      const box = document.createElement("article");
      const title = document.createElement("h2");
      title.append(made("span", method, "method"), made("code", path));
      box.append(title, made("p", about.summary));
      if (about.requestBody) {
        box.append(made("h3", "Request"), fields(schema(about.requestBody.content)));
        box.append(made("h3", "Answer"), fields(schema(about.responses["200"].content)));
        const codes = Object.entries(about.responses).filter(([code]) => code !== "200").map(([code, r]) => `${code} ${r.description}`);
        box.append(made("p", codes.join(" · "), "note"));
      }
      document.getElementById("paths").append(box);
    }
  }
});
