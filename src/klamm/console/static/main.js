// The frame around the pages: navigation, theme, and which page an address stands for.
import { Cli, Failure, html, Link, render, useApi, useEffect, useLocation, useState } from "./base.js";
import { applyTheme, KEY } from "./theme.js";
import { Now } from "./now.js";
import { Time } from "./time.js";
import { WhatIf } from "./whatif.js";
import { Moves } from "./moves.js";
import { Topics } from "./topics.js";
import { Groups } from "./groups.js";
import { BrokerPages } from "./brokers.js";
import { Transactions } from "./transactions.js";
import { Access } from "./access.js";
import { Lessons } from "./lessons.js";

// The token came with the link and is a cookie now: it need not stay where it is seen.
const here = new URL(location.href);
if (here.searchParams.has("token")) {
  here.searchParams.delete("token");
  history.replaceState(null, "", here.pathname + here.search);
}

const PAGES = [
  ["/", "Now", Now, "M3 12h4l3 7 4-14 3 7h4"],
  ["/time", "Time", Time, "M12 7v5l3 2M12 3a9 9 0 1 0 .01 0z"],
  ["/whatif", "What if", WhatIf, "M9 9a3 3 0 1 1 4 2.8c-.7.3-1 .9-1 1.7v.5m0 3v.1M12 3a9 9 0 1 0 .01 0z"],
  ["/moves", "Moves", Moves, "M4 8h13m-4-4 4 4-4 4M20 16H7m4-4-4 4 4 4"],
  ["/topics", "Topics", Topics, "M4 6h16M4 12h16M4 18h10"],
  ["/groups", "Groups", Groups, "M9 11a3 3 0 1 0 0-6 3 3 0 0 0 0 6zm-6 8a6 6 0 0 1 12 0m1-8a3 3 0 1 0-1-5.8M21 19a6 6 0 0 0-4-5.6"],
  ["/brokers", "Brokers", BrokerPages, "M4 5h16v5H4zM4 14h16v5H4zM8 7.5v.1M8 16.5v.1"],
  ["/transactions", "Transactions", Transactions, "M4 7h11a5 5 0 0 1 0 10H4m4-4-4 4 4 4M9 3 4 7l5 4"],
  ["/acls", "Access", Access, "M7 11V8a5 5 0 0 1 10 0v3M5 11h14v9H5zM12 15v2", null, ["/users", "/quotas"]],
  ["/lessons", "Lessons", Lessons, "M2 9l10-5 10 5-10 5zM6 11.5V17c3 3 9 3 12 0v-5.5", "lessons"],
];

function pageOf(path) {
  const found = PAGES.find(([to, , , , , others]) => (to === "/" ? path === "/" : path === to || path.startsWith(`${to}/`) || (others && others.includes(path))));
  return found || PAGES[0];
}

// Pages that ask brokers, and what a saved history has instead.
const ASKS_BROKERS = [
  [/^\/moves/, "Moves", "A saved history has no cluster that could be changed. What was moved, and who asked for it, is on page Time."],
  [/^\/topics\/./, "Topic", "Settings and records of a topic are asked of brokers. Its partitions are on the pages Now and Time; a click on one tells its story."],
  [/^\/groups/, "Groups", "Members, offsets and lag are asked of brokers; a saved history has what controllers decided."],
  [/^\/brokers\/./, "Broker", "Settings, directories and charts of a broker are asked of the broker. What it led and held is on the pages Now and Time."],
  [/^\/transactions/, "Transactions", "Transactional ids are asked of their coordinators; a saved history has what controllers decided."],
  [/^\/(acls|users|quotas)/, "Access", "Users, ACLs and quotas are asked of brokers; a saved history has what controllers decided."],
];

function Offline({ title, text, cluster }) {
  return html`<div>
    <div class="head"><h1>${title}</h1></div>
    <p class="note" id="offline">This console shows a saved history, without a cluster. ${text} <code>klamm console --bootstrap-server HOST:PORT</code> looks at a cluster.</p>
    <${Cli} command="klamm history" cluster=${cluster} />
  </div>`;
}

function servers(list) {
  const [first, ...others] = list.split(",");
  return others.length ? `${first} and ${others.length} more` : first;
}

function ThemeButton() {
  const [theme, setTheme] = useState(localStorage.getItem(KEY) || "system");
  const next = { system: "light", light: "dark", dark: "system" }[theme];
  const change = () => {
    if (next === "system") localStorage.removeItem(KEY);
    else localStorage.setItem(KEY, next);
    applyTheme(next);
    setTheme(next);
  };
  return html`<button class="small-button" onClick=${change} aria-label=${`Theme: ${theme}; change to ${next}`} id="theme">${theme}</button>`;
}

function Console() {
  const { path } = useLocation();
  const { data: cluster, error, reload } = useApi("/api/cluster", { every: 5000 });
  const [to, title, Page] = pageOf(path);
  useEffect(() => {
    document.title = `${title} · klamm console`;
    const current = document.querySelector(".side [aria-current=page]"); // on a phone the row of pages is wider than the screen
    if (current) current.scrollIntoView({ block: "nearest", inline: "center" });
  }, [title, cluster === null]);
  const asks = ASKS_BROKERS.find(([pattern]) => pattern.test(path));
  const shown = asks && (!cluster || cluster.offline)
    ? cluster ? html`<${Offline} title=${asks[1]} text=${asks[2]} cluster=${cluster} />` : html`<div><div class="head"><h1>${title}</h1></div>${error ? html`<${Failure} error=${error} />` : html`<p class="soft">Reading…</p>`}</div>`
    : html`<${Page} cluster=${cluster} refresh=${reload} />`;
  const pages = PAGES.filter(([, , , , needs]) => !needs || (cluster && cluster[needs]));
  return html`<div class="frame">
    <a class="skip" href="#main">Skip to the content</a>
    <header class="side">
      <${Link} to="/" class="brand" aria-label="klamm console"><img src="/static/icon.svg" alt="" /><span>klamm</span><//>
      <nav aria-label="Pages">${pages.map(([address, name, , icon]) => html`<${Link} to=${address} aria-current=${address === to ? "page" : undefined} key=${address}>
        <svg viewBox="0 0 24 24" fill="none" stroke="currentColor" stroke-width="2" stroke-linecap="round" stroke-linejoin="round" aria-hidden="true"><path d=${icon} /></svg>${name}<//>`)}</nav>
      <div class="foot">
        <div class="who">${cluster ? (cluster.offline ? "a saved history" : servers(cluster.bootstrap_servers)) : "…"}${cluster && !cluster.allow_changes ? html`<br /><span class="tag">read-only</span>` : null}</div>
        <div><${ThemeButton} /></div>
      </div>
    </header>
    <main id="main">${shown}</main>
  </div>`;
}

render(html`<${Console} />`, document.getElementById("app"));
