"""Devices: the duration and the energy of orders on each client, and when clients are online.

`fleet.Fleet` combines training times (`compute`), transfer times (`network`) and energy.
`fleet.Churn` decides when clients are online. All are functions of (seed, client, number).
"""
