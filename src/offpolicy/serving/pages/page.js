"use strict";
const $ = (id) => document.getElementById(id);
const made = (tag, text, kind) => { const e = document.createElement(tag); e.textContent = text; if (kind) e.className = kind; return e; };
const digits = (x, n = 3) => x === null || x === undefined ? "–" : Number(x.toPrecision(n)).toString();
const share = (x) => x === null ? "–" : (100 * x).toFixed(1) + " %";
let token = sessionStorage.getItem("offpolicy-token");

function worth(name, v) {
  const box = made("div", "", "worth");
  box.append(made("span", name), made("b", v.count ? digits(v.mean) : "–"));
  const track = made("div", "", "track");
  const place = (x) => 100 * (x - v.floor) / (v.ceiling - v.floor);
  const bar = document.createElement("i"), mark = document.createElement("u");
  bar.style.left = place(v.low) + "%";
  bar.style.width = place(v.high) - place(v.low) + "%";
  track.append(bar);
  if (v.count) { mark.style.left = place(v.mean) + "%"; track.append(mark); }
  const said = v.count ? `between ${digits(v.low)} and ${digits(v.high)}, ${v.count.toLocaleString("en")} decisions` : "no decision is old enough yet";
  box.append(track, made("span", said, "ends"));
  return box;
}

function bars(counts, seconds) {
  const most = Math.max(...counts, 1), width = 600 / counts.length;
  $("bars").replaceChildren(...counts.map((count, i) => {
    const r = document.createElementNS("http://www.w3.org/2000/svg", "rect");
    const height = 84 * count / most;
    for (const [k, v] of Object.entries({ x: i * width + 1, y: 90 - height, width: width - 2, height })) r.setAttribute(k, v);
    return r;
  }));
  $("peak").textContent = `the highest bar is ${digits(most / seconds)} a second`;
}

function row(d) {
  const tr = document.createElement("tr");
  const why = d.source === "policy" ? (d.explored ? "explored" : "most probable") : d.source;
  tr.append(made("td", new Date(1000 * d.time).toLocaleTimeString()), made("td", d.request_id),
    made("td", d.action === null ? "–" : String(d.action)), made("td", digits(d.probability), "n"),
    made("td", d.notes ? `${why}; ${d.notes}` : why, d.explored ? "odd" : ""));
  return tr;
}

function show(s) {
  $("shown").hidden = false;
  $("ask").hidden = true;
  const about = $("about");
  about.replaceChildren(made("span", `Policy ${s.method || ""} `), made("code", s.policy.slice(0, 12)),
    made("span", ` decides in mode ${s.mode}` + (s.epsilon ? `, ${share(s.epsilon)} spread over all candidates` : "") +
      (s.keep < 1 ? `, ${share(s.keep)} of decisions recorded` : "") + "."));
  $("rate").textContent = digits(s.per_second);
  $("total").textContent = `${s.decisions.toLocaleString("en")} in the store`;
  $("explored").textContent = share(s.explored_share);
  const values = [worth(s.mode === "shadow" ? "the baseline, as served" : "as served", s.value.served)];
  if (s.value.policy) values.push(worth("the policy without exploration", s.value.policy));
  $("value").replaceChildren(...values);
  $("horizon").textContent = `Mean reward of this policy's decisions older than ${digits(s.value.horizon)} s; 95 % intervals that hold however often you look.`;
  bars(s.bars, s.bucket_seconds);
  $("last").replaceChildren(...s.last.map(row));
}

function say(text, kind) { $("state").textContent = text; $("state").className = "badge " + kind; }

async function refresh() {
  try {
    const answer = await fetch("status", token ? { headers: { authorization: "Bearer " + token } } : {});
    if (answer.status === 401) { $("ask").hidden = false; $("shown").hidden = true; say("locked", "bad"); return; }
    if (!answer.ok) throw new Error(answer.status);
    show(await answer.json());
    say("serving", "good");
  } catch { say("no answer", "bad"); }
  setTimeout(refresh, 2000);
}

$("ask").addEventListener("submit", (event) => {
  event.preventDefault();
  token = $("token").value;
  sessionStorage.setItem("offpolicy-token", token);
  refresh();
});
refresh();
