"""The report of a study: `trials.csv`, `confirm.csv`, `best.yml`, `report.html`, and tables for terminals."""
