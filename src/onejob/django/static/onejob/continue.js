// Goes on with the next portion of an operation on many jobs; without scripts there is a button.
document.getElementById("continue").requestSubmit();
