// Rows of a table's body, changed in place: what has not changed is not touched, so a selection survives.

/** `rows` are lists of texts, one for each column. */
export function fill(body, rows) {
  while (body.rows.length > rows.length) body.deleteRow(-1);
  rows.forEach((texts, place) => {
    const row = body.rows[place] ?? body.insertRow();
    texts.forEach((text, column) => {
      const cell = row.cells[column] ?? row.insertCell();
      if (cell.textContent !== text) cell.textContent = text;
    });
  });
}
