# %% tags=["setup"]
from twophase_labs import ____, check, measured, use
from twophase_labs.operations import costs, dashboards

