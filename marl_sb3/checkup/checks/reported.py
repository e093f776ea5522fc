"""Checks whose findings the probes report themselves, and those from outside the process of the env."""

from __future__ import annotations

from marl_sb3.checkup.finding import ADVICE, CHECKS, FAULT, WARNING, Check

_SEEDING = "Make a generator in reset(): self.rng = np.random.default_rng(seed); draw from it alone."
_PAID = "The agent learns that its action was worth more than it was."

CHECKS += [
    Check("interface", FAULT, "the env lacks a part of the ParallelEnv interface",
          why="All commands refuse such an env.",
          remedy="Add what the message asks for."),
    Check("space-changes", FAULT, "two calls for a space return different spaces",
          why="Networks are built once for the spaces; later observations or actions do not fit them.",
          remedy="Create each space once, in the constructor, and return that object."),
    Check("raises", FAULT, "the env raises an exception",
          why="Training stops with this error.",
          remedy="Look at the line that the message names; -v shows the whole traceback."),
    Check("bad-return", FAULT, "reset() or step() does not return what it should",
          why="Training stops with an error.",
          remedy="Return (observations, infos) from reset() and (observations, rewards, terminated, truncated, infos) "
                 "from step(), each a dictionary by agent."),
    Check("no-agents", FAULT, "no agent is live when an episode begins",
          why="Without live agents the episode cannot be played.",
          remedy="Set `agents` in reset() to a list of the agents that act first."),
    Check("close-raises", WARNING, "close() raises an exception",
          why="Training logs the error and continues, but the env may not have released its resources.",
          remedy="Make close() work at any time, also before the first reset()."),
    Check("left-running", WARNING, "a thread or a process of the env runs on after close()",
          why="Python waits for it, so that a finished training run does not end.",
          remedy="End it in close(), or start it with daemon=True."),
    Check("prints", ADVICE, "the env prints",
          why="With many envs, the output hides everything else and takes time.",
          remedy="Print on demand, with `logging` for example."),
    Check("warns", ADVICE, "the env gives warnings",
          why="Warnings point to mistakes in the env or in how it is used.",
          remedy="Read them, and fix what they name."),
    Check("global-rng", FAULT, "the env uses a global random generator",
          why="All envs and SB3 itself draw from that generator: no episode can be repeated, and an env that seeds "
              "it makes the exploration of all policies repeat itself.",
          remedy=_SEEDING),
    Check("unseeded", FAULT, "the same seed gives different episodes",
          why="No run can be repeated or resumed exactly, and comparisons between settings are noisier.",
          remedy=f"{_SEEDING} Seed spaces too if the env samples from them."),
    Check("seed-ignored", FAULT, "reset(seed=...) does not seed the env",
          why="All envs of a vectorizer play the same episodes, so more envs bring no more experience.",
          remedy=_SEEDING),
    Check("state-leaks", FAULT, "an episode depends on the episodes before it",
          why="No episode can be repeated from its seed, as exact resumes and evaluations do.",
          remedy="Set everything that an episode changes anew in reset()."),
    Check("shared-state", FAULT, "two envs influence each other",
          why="The envs of a vectorizer run in turns in one process, and change each other's episodes.",
          remedy="Keep everything that changes in the instance: no class attributes, module globals or default "
                 "arguments that are changed."),
    Check("same-for-every-seed", ADVICE, "the env's seed has changed nothing",
          why="If the env should be random, its seed is not used, or its randomness is rare.",
          remedy=f"Nothing if the env is meant to be deterministic. {_SEEDING}"),
    Check("cumulative-rewards-kept", FAULT, "an agent is paid its old rewards in each turn again",
          why=_PAID,
          remedy="Set self._cumulative_rewards[agent] = 0 at the start of the agent's step()."),
    Check("old-rewards-paid", WARNING, "a reward is paid again in the steps of other agents",
          why=_PAID,
          remedy="Call self._clear_rewards() in each step(), before rewards are set and accumulated."),
    Check("state-not-restored", FAULT, "set_state(get_state()) does not bring the env back",
          why="A resumed run goes on from a different state.",
          remedy="Let get_state() return everything that an episode changes, the state of random generators too, as "
                 "plain data and arrays, and set_state() put it back, in a new env as well."),
    Check("memory-grows", WARNING, "the env keeps more memory with every step",
          why="A training run takes millions of steps, and ends when the memory is full.",
          remedy="Look for lists, dictionaries and caches that grow with each step, and empty them in reset()."),
    Check("render-fails", WARNING, "a render mode does not work",
          why="`evaluate --video` fails, or shows something else.",
          remedy="Return an array (height, width, 3) of uint8 for rgb_array and a string for ansi, or remove the mode "
                 "from metadata['render_modes']."),
    Check("no-film", ADVICE, "the env has no render mode rgb_array",
          why="`evaluate --video` cannot show it.",
          remedy="List 'rgb_array' in metadata['render_modes'], take an argument render_mode, and return an array "
                 "(height, width, 3) of uint8 from render()."),
    Check("vectorizer-refuses", FAULT, "the vectorizer refuses the env",
          why="Training cannot start.",
          remedy="Do what the message says."),
    Check("no-algorithm", FAULT, "no algorithm can learn with these spaces",
          why="SB3 takes Box, Discrete, MultiDiscrete and MultiBinary actions, and Dicts of such observations.",
          remedy="Change the space as the message says, or flatten it by a wrapper."),
    Check("differs-between-processes", FAULT, "the same seed gives another episode in another process",
          why="No run can be repeated or resumed exactly.",
          remedy="Look for the order of sets, which differs between processes: iterate over sorted(the_set). Look "
                 "also for hash(), id(), the time and the process id."),
    Check("hangs", FAULT, "a call of the env does not return",
          why="Training would wait for it forever.",
          remedy="Look at the line that was running. If the env is that slow, --timeout gives it more time."),
    Check("crashes", FAULT, "the env ends the process",
          why="Training ends without a checkpoint.",
          remedy="Look at the line that was running: C code may have a bug, memory may have run out, or os._exit was "
                 "called."),
]  # fmt: skip
