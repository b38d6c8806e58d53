-- For a trial: anyone who reads this file knows them.
alter role deputize_migrator password 'trial';
alter role deputize_gateway password 'trial';
