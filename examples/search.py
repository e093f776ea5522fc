"""Search a learning rate for each agent of the arena, so that the weaker one of them gets the most."""

import argparse

import marl_sb3


def main(trials: int, env_steps: int) -> None:
    """Try `trials` pairs of learning rates for `env_steps` each, and print them, the best first."""
    study = marl_sb3.tune(
        "arena",
        policies="per_agent",
        space={
            "agent1.learning_rate": {"log_uniform": [1e-4, 3e-3]},
            "agent2.learning_rate": {"log_uniform": [1e-4, 3e-3]},
        },
        objective="min",
        trials=trials,
        timesteps=env_steps,
        evaluations=2,
        confirm_seeds=0,  # by default, the best trials race against the preset, which takes as long as the trials
    )
    for trial in study.completed():
        rates = ", ".join(f"{name} {value:.2g}" for name, value in trial.params.items())
        print(f"trial {trial.number}: the weaker agent's return is {trial.value:.1f} with {rates}")
    print(f"train with the best: python -m marl_sb3.train --hparams {study.folder / 'best.yml'}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=5, help="default: 5")
    parser.add_argument("--env-steps", type=int, default=20_000, help="of each trial; default: 20000")
    arguments = parser.parse_args()
    main(arguments.trials, arguments.env_steps)
