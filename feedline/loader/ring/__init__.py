"""Slots and messages between feeder and trainer."""
