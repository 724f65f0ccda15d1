// The study cards: questions with a gap, which a click fills.

const BLANK = "____";

// Draws cards into a list, by a template; `turned` hears each answer that is opened.
export function draw(list, template, cards, turned) {
  list.replaceChildren(...cards.map((card) => item(template, card, turned)));
}

function item(template, card, turned) {
  const made = template.content.firstElementChild.cloneNode(true);
  const parts = card.question.includes(BLANK) ? card.question.split(BLANK) : [`${card.question} `, ""];
  const line = made.querySelector(".question");
  line.append(...parts.flatMap((text, at) => (at > 0 ? [gap(), text] : [text])));
  made.querySelector(".source").textContent = card.source;
  made.querySelector("button").addEventListener("click", ({ currentTarget }) => {
    if (turn(currentTarget, card.answer)) turned(card.answer);
  });
  return made;
}

function gap() {
  const made = document.createElement("span");
  made.className = "blank";
  made.textContent = BLANK;
  return made;
}

function turn(button, answer) {
  const open = button.getAttribute("aria-expanded") !== "true";
  button.setAttribute("aria-expanded", open);
  button.querySelector(".reveal").textContent = open ? "Hide answer" : "Show answer";
  for (const each of button.querySelectorAll(".blank")) each.textContent = open ? answer : BLANK;
  return open;
}
