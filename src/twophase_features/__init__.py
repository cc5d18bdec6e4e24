"""Features behind the engine's doors. The engine (`twophase`) imports no feature; an option or an argument loads it."""
