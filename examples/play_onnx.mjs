// Play connect four from the ONNX file of a policy, without Python:
//
//   python -m marl_sb3.train classic/connect_four-v3 --algo maskable_ppo --run-dir c4
//   python -m marl_sb3.export c4 --format onnx
//   npm install onnxruntime-node             (in the folder of this file)
//   node play_onnx.mjs c4/export/onnx/shared.onnx [GAMES] [SEED]
//
// The policy plays against random moves, and first in every other game. A line of JSON is printed for each game: the
// columns of all moves, which player the policy was (0 begins), who has won (-1: nobody).

import * as ort from "onnxruntime-node";

const [ROWS, COLUMNS, IN_A_ROW] = [6, 7, 4];

class ConnectFour {
  cells = new Array(ROWS * COLUMNS).fill(-1); // from the top left; -1 empty, else the player
  player = 0;
  winner = -1;

  allowed() {
    return Array.from({ length: COLUMNS }, (_, column) => this.cells[column] < 0);
  }

  // What PettingZoo's game shows the player whose turn it is: (6, 7, 2), its own pieces, then the opponent's.
  observation() {
    return this.cells.flatMap((owner) => [Number(owner === this.player), Number(owner === 1 - this.player)]);
  }

  play(column) {
    let row = ROWS - 1;
    while (this.cells[row * COLUMNS + column] >= 0) row--;
    this.cells[row * COLUMNS + column] = this.player;
    if (this.wins(row, column)) this.winner = this.player;
    this.player = 1 - this.player;
  }

  wins(row, column) {
    return [[0, 1], [1, 0], [1, 1], [1, -1]].some(
      ([down, right]) => 1 + this.count(row, column, down, right) + this.count(row, column, -down, -right) >= IN_A_ROW,
    );
  }

  // The player's pieces in a row from a cell on, without that cell.
  count(row, column, down, right) {
    let found = 0;
    for (;;) {
      [row, column] = [row + down, column + right];
      const inside = row >= 0 && row < ROWS && column >= 0 && column < COLUMNS;
      if (!inside || this.cells[row * COLUMNS + column] !== this.player) return found;
      found++;
    }
  }

  isOver() {
    return this.winner >= 0 || !this.allowed().includes(true);
  }
}

async function policyMove(session, game) {
  const { actions } = await session.run({
    observation: new ort.Tensor("int8", Int8Array.from(game.observation()), [1, ROWS, COLUMNS, 2]),
    action_mask: new ort.Tensor("bool", Uint8Array.from(game.allowed(), Number), [1, COLUMNS]),
  });
  return Number(actions.data[0]); // an int64 is a BigInt
}

function randomMove(game) {
  const columns = game.allowed().flatMap((allowed, column) => (allowed ? [column] : []));
  seed = (Math.imul(seed, 1664525) + 1013904223) >>> 0; // the same games for the same seed
  return columns[Math.floor((seed / 2 ** 32) * columns.length)];
}

const [file, games, start] = process.argv.slice(2);
let seed = Number(start ?? 0);
const session = await ort.InferenceSession.create(file);
for (let number = 0; number < Number(games ?? 10); number++) {
  const game = new ConnectFour();
  const moves = [];
  while (!game.isOver()) {
    const isMine = game.player === number % 2;
    const column = isMine ? await policyMove(session, game) : randomMove(game);
    game.play(column);
    moves.push(column);
  }
  console.log(JSON.stringify({ moves, policy: number % 2, winner: game.winner }));
}
